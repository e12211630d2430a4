#include "comm/reduction_tree.h"

#include <algorithm>

#include "base/error.h"

namespace tutti::comm {
namespace {

// The maximal nodes inside `range`, found from `node` downwards.
void collect(Range node, Range range, std::vector<Range>& found) {
  if (node.end <= range.begin || range.end <= node.begin) return;
  if (range.begin <= node.begin && node.end <= range.end) {
    found.push_back(node);
    return;
  }
  const int middle = node.begin + split_of(node.size());
  collect({node.begin, middle}, range, found);
  collect({middle, node.end}, range, found);
}

// Appends the program for `node`; `source` is the next source, as nodes come in tree order.
void emit(Range node, const std::vector<Range>& sources, int& source, std::vector<int>& steps) {
  if (sources[static_cast<std::size_t>(source)] == node) {
    steps.push_back(source++);
    return;
  }
  const int middle = node.begin + split_of(node.size());
  emit({node.begin, middle}, sources, source, steps);
  emit({middle, node.end}, sources, source, steps);
  steps.push_back(ReductionPlan::add);
}

}  // namespace

int split_of(int size) {
  TUTTI_ASSERT(size >= 2, size);
  int split = 1;
  while (split * 2 < size) split *= 2;
  return split;
}

bool is_node(Range range, int leaves) {
  Range node{0, leaves};
  while (node.size() > 1 && node != range) {
    const int middle = node.begin + split_of(node.size());
    node = range.begin < middle ? Range{node.begin, middle} : Range{middle, node.end};
  }
  return node == range && range.size() > 0;
}

std::vector<Range> forest_of(Range range, int leaves) {
  std::vector<Range> found;
  if (range.size() > 0) collect({0, leaves}, range, found);
  return found;
}

std::vector<Range> even_ranges(int leaves, int ranks) {
  std::vector<Range> ranges;
  for (int rank = 0, begin = 0; rank < ranks; ++rank) {
    const int size = leaves / ranks + (rank < leaves % ranks ? 1 : 0);
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

std::vector<Arrival> arrivals_of(Range range, int leaves) {
  std::vector<Arrival> arrivals;
  std::vector<Range> stack;
  for (int id = range.begin; id < range.end; ++id) {
    stack.push_back({id, id + 1});
    Arrival arrival{static_cast<int>(stack.size()) - 1, 0};
    while (stack.size() >= 2) {
      const Range left = stack[stack.size() - 2], right = stack.back();
      const Range parent{left.begin, right.end};
      if (!is_node(parent, leaves) || split_of(parent.size()) != left.size()) break;
      stack.pop_back();
      stack.back() = parent;
      ++arrival.merges;
    }
    arrivals.push_back(arrival);
  }
  return arrivals;
}

int slots_of(const std::vector<Arrival>& arrivals) {
  int slots = 0;
  for (const Arrival& arrival : arrivals) slots = std::max(slots, arrival.slot + 1);
  return slots;
}

ReductionPlan plan_reduction(const std::vector<Range>& ranges) {
  ReductionPlan plan;
  plan.ranges = ranges;
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
    if (ranges[rank].begin != plan.leaves || ranges[rank].size() < 0)
      throw ConfigError(str("rank ", rank, " has micro-batches [", ranges[rank].begin, ", ",
                            ranges[rank].end, "); they must start at ", plan.leaves));
    plan.leaves = ranges[rank].end;
  }
  if (plan.leaves == 0) throw ConfigError("a reduction needs at least one micro-batch");
  std::vector<Range> sources;
  for (const Range range : ranges) {
    plan.first.push_back(static_cast<int>(sources.size()));
    for (const Range node : forest_of(range, plan.leaves)) sources.push_back(node);
  }
  plan.first.push_back(static_cast<int>(sources.size()));
  for (std::size_t rank = 0; rank < ranges.size(); ++rank)
    plan.max_nodes = std::max(plan.max_nodes, plan.nodes_of(static_cast<int>(rank)));
  int source = 0, depth = 0;
  emit({0, plan.leaves}, sources, source, plan.steps);
  for (const int step : plan.steps) {
    depth += step == ReductionPlan::add ? -1 : 1;
    plan.depth = std::max(plan.depth, depth);
  }
  return plan;
}

}  // namespace tutti::comm
