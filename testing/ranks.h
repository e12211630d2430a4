// Threads as ranks, for tests of communicators and of what is built on them.
#pragma once
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/memory_group.h"

namespace tutti::testing {

// Runs body(rank, *members[rank]) on a thread each; members are pointers to what has abort(reason):
// communicators, groups. When ranks throw, the others are aborted, and a WorldError names each rank
// that failed with its error.
template <class Members, class Body>
void run_members(Members& members, Body body) {
  std::mutex mutex;
  std::string failures;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < members.size(); ++rank)
    threads.emplace_back([&, rank] {
      std::string error;
      try {
        body(static_cast<int>(rank), *members[rank]);
        return;
      } catch (const std::exception& e) {
        error = e.what();
      } catch (...) {
        error = "an unknown exception";
      }
      members[rank]->abort(str("rank ", rank, " failed"));
      const std::lock_guard lock(mutex);
      failures += str("rank ", rank, ": ", error, "\n");
    });
  for (auto& thread : threads) thread.join();
  if (!failures.empty()) throw WorldError(failures);
}

// The same for body(communicator) and a group of `size` communicators made for it.
template <class Body>
void run_ranks(int size, Body body, const comm::MemoryOptions& options = {}) {
  auto group = comm::make_thread_group(size, options);
  run_members(group, [&](int, comm::Communicator& communicator) { body(communicator); });
}

}  // namespace tutti::testing
