// Ranks that share memory: processes of one host (one memfd segment) or threads of one process.
//
// Each rank posts what it brings, waits for its peers, reduces its own slice reading all peers'
// memory and writes the result to all of them. Buffers from allocate_shared() (and, between
// threads, all buffers) are read and written in place; others pass through a staging slot in
// chunks. A wait spins for some microseconds, then sleeps on a futex, so that ranks may outnumber
// cores. A process that ended is noticed within a second and named.
//
// The segment has no name: it is handed over an abstract Unix socket and dies with its last
// process.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace tutti::comm {

struct MemoryOptions {
  std::string group = "world";
  double timeout = 300;                             // seconds, also for meeting
  std::size_t chunk_bytes = 1 << 20;                // staging slot a rank; a multiple of 64
  std::size_t eager_bytes = 4096;                   // up to here one synchronisation is enough
  std::size_t shared_bytes = std::size_t{8} << 30;  // address space a rank for allocate_shared()
  double spin_seconds = 20e-6;                      // before a wait sleeps
  bool force_staging = false;                       // for tests: threads behave like processes
};

constexpr int max_memory_ranks = 64;

// Processes of one host and one user. `name` tells jobs and groups apart: the same on all ranks,
// fresh for every group. WorldError when the peers do not come in time or the name is taken.
std::unique_ptr<Communicator> join_shm(const std::string& name, int rank, int size,
                                       const MemoryOptions& options = {});

// Communicators for `size` threads of this process; entry r is rank r's.
std::vector<std::unique_ptr<Communicator>> make_thread_group(int size,
                                                             const MemoryOptions& options = {});

}  // namespace tutti::comm
