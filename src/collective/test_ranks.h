// What the tests of groups share: ports, options, and threads as ranks.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "collective/gloo.h"
#include "collective/group.h"
#include "collective/store_meeting.h"

namespace tutti::collective {

struct Port {
  int socket_fd, number;
};

// A listening port of the system's choice; the caller closes it.
inline Port taken_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t bytes = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0 || listen(fd, 1) != 0)
    throw WorldError(str("no port: ", errno_text()));
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  return {fd, ntohs(address.sin_port)};
}

inline int free_port() {
  const Port port = taken_port();
  close(port.socket_fd);
  return port.number;
}

inline GroupOptions options_of(const char* transport, int rank, int size, int port) {
  GroupOptions options;
  options.transport = transport;
  options.rank = rank;
  options.size = size;
  options.local_size = size;
  options.port = port;
  options.name = str("test-", getppid(), "-", port);
  options.timeout = 20;
  return options;
}

inline std::unique_ptr<comm::Communicator> join(const GroupOptions& options) {
  return join_gloo(options, open_store(options));
}

// body(rank) on `size` threads; all errors' texts.
inline std::string on_threads(int size, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::string errors;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        errors += str("rank ", rank, ": ", error.what(), "\n");
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

// body(group) on a thread each of `size` ranks over this transport: "threads", "shm", "gloo",
// "tcp", "auto"; or "hosts": auto, with each rank said to be on a host of its own; or "pairs":
// auto, with two ranks on each host.
inline std::string on_groups(const std::string& transport, int size,
                             const std::function<void(Group&)>& body, double timeout = 20) {
  const int port = free_port();
  auto groups =
      transport == "threads" ? make_thread_groups(size) : std::vector<std::shared_ptr<Group>>();
  return on_threads(size, [&](int rank) {
    auto options = options_of(transport.c_str(), rank, size, port);
    options.timeout = timeout;
    if (transport == "hosts" || transport == "pairs") {
      options.transport = "auto";
      options.local_size = transport == "hosts" ? 1 : 2;
      options.here = 1 + rank / options.local_size;
      options.secret = "known to the ranks of this test";
    }
    const auto group =
        groups.empty() ? make_group(options) : std::move(groups[static_cast<std::size_t>(rank)]);
    try {
      body(*group);
    } catch (const std::exception& error) {
      group->abort(error.what());
      throw;
    }
  });
}

}  // namespace tutti::collective
