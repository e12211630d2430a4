// The collectives over TCP: threads and processes as ranks, on this host.
#include "comm/socket_group.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/conformance.h"
#include "testing/ranks.h"

using namespace tutti;
using namespace tutti::comm;

namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;

// Shared by threads.
class MemoryBoard : public Board {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    texts_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, double timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout),
                           [&] { return texts_.contains(key); }))
      throw WorldError("no '" + key + "'");
    return texts_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> texts_;
};

SocketOptions small_options() {
  SocketOptions options;
  options.chunk_bytes = 4096;
  options.eager_bytes = 512;
  options.timeout = 60;
  return options;
}

SocketOptions sealed_options() {
  SocketOptions options = small_options();
  options.secret = "only the ranks know this";
  options.encrypt = true;
  return options;
}

Group make_group(int size, const SocketOptions& options) {
  MemoryBoard board;
  Group group(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  std::vector<std::string> errors(group.size());
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      try {
        group[r] = join_tcp(board, "test", rank, size, options);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty()) throw WorldError(error);
  return group;
}

template <class Body>
void run_tcp(int size, Body body, const SocketOptions& options = small_options()) {
  Group group = make_group(size, options);
  testing::run_members(group, [&](int, Communicator& communicator) { body(communicator); });
}

}  // namespace

TEST_CASE("Conformance: tcp") {
  for (const int size : {1, 2, 3, 7})
    run_tcp(size, [](Communicator& c) { check_conformance(c); });
}

TEST_CASE("Conformance: tcp, sealed") {
  for (const int size : {1, 2, 3, 7})
    run_tcp(size, [](Communicator& c) { check_conformance(c); }, sealed_options());
}
