#include "collective/store_meeting.h"

#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "comm/memory_group.h"

namespace tutti::collective {
namespace {

void set(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

std::string get(c10d::Store& store, const std::string& key) {
  const auto value = store.get(key);
  return {value.begin(), value.end()};
}

[[noreturn]] void fail(const GroupOptions& options, const std::string& cause) {
  throw WorldError(str("group '", options.group, "', rank ", options.rank, " of ", options.size,
                       ": meeting at ", options.host, ":", options.port, ": ", cause));
}

// Of no other group on this host, also of later ones.
std::string fresh_name() {
  static std::atomic<int> made = 0;
  return str("c10d-", getpid(), "-", std::chrono::steady_clock::now().time_since_epoch().count(),
             "-", ++made);
}

[[noreturn]] void refuse(const Host& first, int rank, const Host& other) {
  const std::string where =
      first.name == other.name
          ? str("rank ", rank, " is in another container or another user's on '", other.name, "'")
          : str("rank 0 is on '", first.name, "', rank ", rank, " on '", other.name, "'");
  throw ConfigError(std::vector<Violation>{{"backend", "", "tutti",
                                            "must have all ranks of a group on one host: " + where,
                                            "use gloo between hosts"}});
}

void check_hosts(c10d::Store& store, const StoreMeeting& meeting) {
  set(store, str("host/", meeting.rank), str(meeting.host.id, " ", meeting.host.name));
  Host first{};
  for (int r = 0; r < meeting.size; ++r) {
    const std::string text = get(store, str("host/", r));
    const auto space = text.find(' ');
    const Host host{std::stoll(text.substr(0, space)), text.substr(space + 1)};
    if (r == 0) first = host;
    if (host.id != first.id) refuse(first, r, host);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const GroupOptions& options) {
  const int least = options.rank == 0 && options.publish ? 0 : 1;
  if (options.port < least || options.port > 65535)
    throw ConfigError(
        std::vector<Violation>{{"port", "", str(options.port), "must be 1 to 65535", ""}});
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<std::uint16_t>(options.port);
  tcp.isServer = options.rank == 0;
  tcp.waitWorkers = false;
  tcp.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout * 1e3));
  tcp.multiTenant = true;  // several groups of a job share rank 0's port
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
    if (tcp.isServer && options.publish) options.publish(store->getPort());
    return store;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (text.find("EADDRINUSE") != std::string::npos || text.find("in use") != std::string::npos)
      fail(options, str("port ", options.port, " is taken; choose another"));
    fail(options, text.substr(0, text.find('\n')));
  }
}

void StoreBoard::set(const std::string& key, const std::string& value) {
  collective::set(*store_, key, value);
}

std::string StoreBoard::get(const std::string& key, double timeout) {
  store_->wait({key}, std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1e3)));
  return collective::get(*store_, key);
}

// One boot of one machine, one network namespace (the meeting place) and one user.
Host this_host() {
  std::array<char, 256> name{}, space{};
  gethostname(name.data(), name.size() - 1);
  [[maybe_unused]] const auto n = readlink("/proc/self/ns/net", space.data(), space.size() - 1);
  std::string boot;
  try {
    boot = read_file("/proc/sys/kernel/random/boot_id");
  } catch (const WorldError&) {  // the host's name must do
  }
  const auto id = hash64(str(name.data(), "/", space.data(), "/", boot, "/", getuid()));
  return {static_cast<std::int64_t>(id), name.data()};
}

std::unique_ptr<comm::Communicator> join_by_store(c10d::Store& store, const StoreMeeting& meeting) {
  comm::MemoryOptions options;
  options.group = meeting.group;
  options.timeout = meeting.timeout;
  options.shared_bytes = 1 << 20;  // c10d's tensors lie elsewhere
  // Few meetings a bucket: each waits for a rank's thread to get a core from its own backward pass.
  options.chunk_bytes = 4 << 20;
  std::string name;
  try {
    check_hosts(store, meeting);
    if (meeting.rank == 0) set(store, "name", fresh_name());
    name = get(store, "name");
  } catch (const c10::Error& error) {
    throw WorldError(
        str("tutti group '", meeting.group, "', rank ", meeting.rank, " of ", meeting.size,
            ": the ranks did not meet in c10d's store: ", error.what_without_backtrace()));
  }
  return comm::join_shm(name, meeting.rank, meeting.size, options);
}

}  // namespace tutti::collective
