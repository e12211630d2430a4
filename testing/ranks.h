// Threads as ranks, for tests of anything that takes a Communicator.
#pragma once
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/memory_group.h"

namespace tutti::testing {

// Runs body(communicator) on `size` threads, one a rank. When ranks throw, the others are aborted,
// and a std::runtime_error names each rank that failed by itself with its error.
template <class Body>
void run_ranks(int size, Body body, const comm::MemoryOptions& options = {}) {
  auto group = comm::make_thread_group(size, options);
  std::mutex mutex;
  std::string failures;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      std::string error;
      try {
        body(*group[static_cast<std::size_t>(rank)]);
        return;
      } catch (const std::exception& e) {
        error = e.what();
      } catch (...) {
        error = "an unknown exception";
      }
      group[static_cast<std::size_t>(rank)]->abort("rank " + std::to_string(rank) + " failed");
      const std::lock_guard lock(mutex);
      failures += "rank " + std::to_string(rank) + ": " + error + "\n";
    });
  for (auto& thread : threads) thread.join();
  if (!failures.empty()) throw std::runtime_error(failures);
}

}  // namespace tutti::testing
