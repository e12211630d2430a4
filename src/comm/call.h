// A collective call as ranks tell it to each other, to find who called another, and as errors name
// it.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace tutti::comm {

enum class Operation {
  barrier,
  broadcast,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  tree_all_reduce,
  tree_reduce_scatter,
  reduce,
  gather,
  scatter
};

// What must be alike on all ranks. Plain numbers, as they come from elsewhere and may be any.
struct CallHead {
  std::uint64_t sequence, count, plan;  // count: of the longest part; plan: its fingerprint()
  std::int32_t operation, type, reduce, root;
  bool operator==(const CallHead&) const = default;
};

// Of a reduction plan, so that other plans are found; 0 for nullptr.
std::uint64_t fingerprint(const ReductionPlan* plan);

// "all_reduce #17 (F32 x 100000, sum)", "all_gather #4 (F32 x 3+5)". `parts` are each rank's
// elements, of operations in parts.
std::string describe(const CallHead& call, std::span<const std::uint64_t> parts);

}  // namespace tutti::comm
