// The fixed tree along which the gradients of a global batch are summed.
//
// A global batch is cut into micro-batches with ids 0..leaves-1. The tree over [begin, end) splits
// at the largest power of two below its size (the shape of RFC 6962's Merkle trees). Whoever
// computes which ids, the same pairs are added in the same order, so that the sum has the same bits
// for every number of ranks, accumulation, bucket size and transport. All functions are pure.
#pragma once
#include <cstddef>
#include <vector>

namespace tutti::comm {

// The ids [begin, end); also the tree node that covers just these.
struct Range {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Where the children of the node with `size` >= 2 leaves part: the largest power of two < size.
int split_of(int size);

bool is_node(Range range, int leaves);

// The fewest tree nodes that cover exactly `range`, left to right; at most 2 log2(leaves).
std::vector<Range> forest_of(Range range, int leaves);

// Contiguous ranges for `ranks` ranks over `leaves` ids, sizes differing by at most one, the longer
// ones first. A rank's range is empty when there are fewer ids than ranks.
std::vector<Range> even_ranges(int leaves, int ranks);

// Local accumulation as a binary counter. A rank takes its ids in ascending order; its partial sums
// stand in slots 0, 1, ... like a stack.
struct Arrival {
  int slot;    // write (not add) the micro-batch's gradient into this slot
  int merges;  // then so many times: slot[s - 1] += slot[s], s = s - 1, starting from s = slot
};
// One arrival an id of `range`. Afterwards slot k holds forest_of(range, leaves)[k].
std::vector<Arrival> arrivals_of(Range range, int leaves);

// Slots that these arrivals need; at most log2(range) + 2.
int slots_of(const std::vector<Arrival>& arrivals);

// The sum across ranks as a program for a stack machine: sources are all ranks' nodes, rank by
// rank, each rank's left to right. A step >= 0 pushes that source; `add` replaces the two topmost
// by their sum (lower + upper).
struct ReductionPlan {
  static constexpr int add = -1;
  std::vector<Range> ranges;  // of each rank
  std::vector<int> first;     // index of each rank's first source, and one entry past the last
  std::vector<int> steps;
  int depth = 0;  // the most entries that the stack has
  int leaves = 0;
  int max_nodes = 1;  // the most sources that one rank has, at least 1

  int nodes_of(int rank) const {
    return first[static_cast<std::size_t>(rank) + 1] - first[static_cast<std::size_t>(rank)];
  }
};
// The ranges must cover [0, leaves) in rank order without gap or overlap (empty ones are allowed);
// ConfigError otherwise. Made once, used for every reduction.
ReductionPlan plan_reduction(const std::vector<Range>& ranges);

}  // namespace tutti::comm
