#include "comm/reduction_tree.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"

using namespace tutti;
using namespace tutti::comm;

namespace {

// The slow, obvious twin: the sum as a bracketed text.
std::string bracketed(int begin, int end) {
  if (end - begin == 1) return std::to_string(begin);
  const int middle = begin + split_of(end - begin);
  return "(" + bracketed(begin, middle) + "+" + bracketed(middle, end) + ")";
}

// What a rank's slots hold after all its ids came.
std::vector<std::string> accumulate(Range range, int leaves) {
  const auto arrivals = arrivals_of(range, leaves);
  std::vector<std::string> slots(static_cast<std::size_t>(slots_of(arrivals)));
  std::size_t used = 0;
  for (int id = range.begin; id < range.end; ++id) {
    const auto [slot, merges] = arrivals[static_cast<std::size_t>(id - range.begin)];
    slots[static_cast<std::size_t>(slot)] = std::to_string(id);
    auto top = static_cast<std::size_t>(slot);
    for (int i = 0; i < merges; ++i, --top)
      slots[top - 1] = "(" + slots[top - 1] + "+" + slots[top] + ")";
    used = top + 1;
  }
  slots.resize(used);
  return slots;
}

std::string run(const ReductionPlan& plan, const std::vector<std::string>& sources) {
  std::vector<std::string> stack;
  for (const int step : plan.steps) {
    if (step != ReductionPlan::add) {
      stack.push_back(sources[static_cast<std::size_t>(step)]);
      continue;
    }
    const std::string upper = stack.back();
    stack.pop_back();
    stack.back() = "(" + stack.back() + "+" + upper + ")";
  }
  REQUIRE(stack.size() == 1);
  return stack[0];
}

}  // namespace

TEST_CASE("split_of: the largest power of two below") {
  CHECK(split_of(2) == 1);
  CHECK(split_of(5) == 4);
  CHECK(split_of(8) == 4);
  CHECK(split_of(9) == 8);
}

TEST_CASE("Reduction: the same brackets for every number of ranks and every cut") {
  for (int leaves = 1; leaves <= 33; ++leaves)
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const auto plan = plan_reduction(even_ranges(leaves, ranks));
      std::vector<std::string> sources;
      for (const Range range : plan.ranges)
        for (const auto& node : accumulate(range, leaves)) sources.push_back(node);
      CHECK(run(plan, sources) == bracketed(0, leaves));
    }
  // Uneven cuts, empty ranks.
  for (int a = 0; a <= 11; ++a)
    for (int b = a; b <= 11; ++b) {
      const auto plan = plan_reduction({{0, a}, {a, b}, {b, 11}});
      std::vector<std::string> sources;
      for (const Range range : plan.ranges)
        for (const auto& node : accumulate(range, 11)) sources.push_back(node);
      CHECK(run(plan, sources) == bracketed(0, 11));
    }
}

TEST_CASE("Reduction: one node a rank for powers of two, few nodes otherwise") {
  CHECK(plan_reduction(even_ranges(64, 4)).max_nodes == 1);
  CHECK(plan_reduction(even_ranges(64, 1)).steps == std::vector{0});
  CHECK(slots_of(arrivals_of({0, 64}, 64)) == 7);
  for (int b = 0; b < 100; ++b)
    for (int e = b; e <= 100; ++e) CHECK(forest_of({b, e}, 100).size() <= 13);
}

TEST_CASE("is_node agrees with a walk over the whole tree") {
  for (int leaves = 1; leaves < 20; ++leaves) {
    std::set<std::pair<int, int>> nodes;
    const auto visit = [&](auto&& self, int b, int e) -> void {
      nodes.insert({b, e});
      if (e - b < 2) return;
      self(self, b, b + split_of(e - b));
      self(self, b + split_of(e - b), e);
    };
    visit(visit, 0, leaves);
    for (int b = 0; b <= leaves; ++b)
      for (int e = b; e <= leaves; ++e) CHECK(is_node({b, e}, leaves) == nodes.count({b, e}));
  }
}

TEST_CASE("plan_reduction refuses gaps, overlaps and nothing") {
  CHECK_THROWS_AS(plan_reduction({{0, 2}, {3, 4}}), ConfigError);
  CHECK_THROWS_AS(plan_reduction({{0, 2}, {1, 4}}), ConfigError);
  CHECK_THROWS_AS(plan_reduction({{0, 0}}), ConfigError);
}
