#include "comm/memory_group.h"

#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "comm/memory_communicator.h"

namespace tutti::comm {
namespace {

void check(int size, const MemoryOptions& options) {
  if (size < 1 || size > max_memory_ranks)
    throw ConfigError(
        str("a shared-memory group has 1 to ", max_memory_ranks, " ranks, not ", size));
  TUTTI_ASSERT(options.chunk_bytes >= 64 * max_memory_ranks && options.chunk_bytes % 64 == 0,
               "chunk_bytes ", options.chunk_bytes);
  TUTTI_ASSERT(options.eager_bytes % 64 == 0, "eager_bytes ", options.eager_bytes);
}

}  // namespace

void MemoryCommunicator::watch_processes() {
  for (int r = 0; r < size(); ++r) {
    const int process = segment_->rank(r).process.load();
    processes_.emplace_back(r == rank() ? 0 : process);
  }
}

std::unique_ptr<Communicator> join_shm(const std::string& name, int rank, int size,
                                       const MemoryOptions& options) {
  check(size, options);
  TUTTI_ASSERT(0 <= rank && rank < size, "rank ", rank, " of ", size);
  auto segment = meet(name, rank, size, options);
  segment->rank(rank).process.store(getpid());
  auto communicator =
      std::make_unique<MemoryCommunicator>(segment, rank, size, options, /*threads=*/false);
  communicator->barrier();
  communicator->watch_processes();
  return communicator;
}

std::vector<std::unique_ptr<Communicator>> make_thread_group(int size,
                                                             const MemoryOptions& options) {
  check(size, options);
  MemoryOptions small = options;
  // Threads reach all memory anyway; an arena only serves tests of arenas.
  small.shared_bytes = std::min<std::size_t>(small.shared_bytes, 64 << 20);
  auto segment = std::make_shared<Segment>(size, small, -1);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < size; ++rank)
    group.push_back(std::make_unique<MemoryCommunicator>(segment, rank, size, small, true));
  return group;
}

}  // namespace tutti::comm
