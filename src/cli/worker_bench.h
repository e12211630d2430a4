// The workers' half of `tutti bench comm`.
#pragma once
#include <string>
#include <vector>

#include "base/fs.h"

namespace tutti::cli {

struct CommBench {
  std::vector<std::string> transports, operations;
  std::vector<std::size_t> sizes;  // bytes, ascending
  double seconds = 0.3;            // of timed calls a cell
  int cores = 1;                   // that the ranks share; each may be bound to its own
  fs::path result;                 // where rank 0 writes docs/formats/comm_profile.md
};

// One rank of it, told by TUTTI_RANK and the like.
void bench_comm(const CommBench& bench);

}  // namespace tutti::cli
