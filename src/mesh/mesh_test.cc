#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "mesh/device_mesh.h"
#include "mesh/placement.h"

using namespace tutti;
using Shape = std::vector<std::int64_t>;

TEST_CASE("DeviceMesh: the last axis varies fastest") {
  const DeviceMesh mesh({{"data", 2}, {"tensor", 4}}, 8);
  CHECK(mesh.group(5, "tensor") == std::vector{4, 5, 6, 7});
  CHECK(mesh.group(5, "data") == std::vector{1, 5});
  CHECK(mesh.size("tensor") == 4);
  CHECK(mesh.describe() == "data 2 x tensor 4 (8 ranks)");
}

TEST_CASE("DeviceMesh: every member of a group sees that group, itself at its own coordinate") {
  const DeviceMesh mesh({{"pipeline", 2}, {"data", 3}, {"context", 1}, {"tensor", 4}}, 24);
  for (const char* axis : {"pipeline", "data", "context", "tensor"})
    for (int rank = 0; rank < 24; ++rank) {
      const auto group = mesh.group(rank, axis);
      CHECK(group.at(static_cast<std::size_t>(mesh.coordinate(rank, axis))) == rank);
      for (const int peer : group) CHECK(mesh.group(peer, axis) == group);
    }
}

TEST_CASE("DeviceMesh: refuses a bad shape, every mistake at once") {
  CHECK_THROWS_WITH_AS(DeviceMesh({{"a", 2}, {"b", 3}}, 8),
                       doctest::Contains("cover 6 ranks; the job has 8"), ConfigError);
  CHECK_THROWS_AS(DeviceMesh({{"a", 65537}, {"b", 65537}}, 131073), ConfigError);
  CHECK_THROWS_AS(DeviceMesh({{"a", 65536}, {"b", 65536}, {"c", 65536}, {"d", 65536}}, 0),
                  ConfigError);
  CHECK_THROWS_WITH_AS(DeviceMesh({{"a", 2}}, 2).group(0, "b"), doctest::Contains("no axis 'b'"),
                       ConfigError);
  try {
    DeviceMesh({{"a", 0}, {"a", 2}, {"", 1}}, 2);
    FAIL("accepted");
  } catch (const ConfigError& error) {
    CHECK(error.violations().size() == 3);
  }
}

TEST_CASE("box_of: boxes of all ranks tile the tensor, also uneven and empty ones") {
  const DeviceMesh mesh({{"data", 3}, {"tensor", 4}}, 12);
  const Placements layouts[] = {{Placement::shard(0), Placement::shard(1)},
                                {Placement::shard(1), Placement::shard(1)},
                                {Placement::replicate(), Placement::shard(0)},
                                {Placement::shard(0), Placement::replicate()},
                                {Placement::replicate(), Placement::replicate()}};
  for (const Shape& shape : {Shape{7, 10}, Shape{1, 1}, Shape{2, 5}, Shape{0, 3}, Shape{12, 16}})
    for (const auto& layout : layouts) {
      std::vector<int> owned(static_cast<std::size_t>(shape[0] * shape[1]));
      for (int rank = 0; rank < 12; ++rank) {
        const Box box = box_of(shape, layout, mesh, rank);
        CHECK(contains(whole(shape), box));
        if (!is_owner(layout, mesh, rank)) continue;
        for (auto i = box.offset[0]; i < box.offset[0] + box.size[0]; ++i)
          for (auto j = box.offset[1]; j < box.offset[1] + box.size[1]; ++j)
            ++owned[static_cast<std::size_t>(i * shape[1] + j)];
      }
      for (const int times : owned) CHECK(times == 1);
    }
}

TEST_CASE("slice_of: ceil parts, the last ones shorter or empty") {
  CHECK(slice_of(10, 4, 3) == Slice{9, 1});
  CHECK(slice_of(2, 4, 1) == Slice{1, 1});
  CHECK(slice_of(2, 4, 3) == Slice{2, 0});
}

TEST_CASE("Box: intersections, containment, text") {
  const Box a{{0, 2}, {4, 4}}, b{{2, 4}, {4, 4}};
  CHECK(intersect(a, b) == Box{{2, 4}, {2, 2}});
  CHECK(element_count(intersect(a, Box{{4, 0}, {1, 9}})) == 0);
  CHECK(contains(a, intersect(a, b)));
  CHECK_FALSE(contains(a, b));
  CHECK(element_count(whole({})) == 1);
  CHECK(to_text(b) == "[2:6, 4:8]");
}

namespace {

// Global indices of a box's elements, in row-major order.
std::vector<Shape> elements_of(const Box& box) {
  std::vector<Shape> all;
  for (std::int64_t i = 0; i < element_count(box); ++i) {
    Shape index(box.size.size());
    std::int64_t rest = i;
    for (std::size_t d = index.size(); d-- > 0; rest /= box.size[d])
      index[d] = box.offset[d] + rest % box.size[d];
    all.push_back(index);
  }
  return all;
}

// fewest[i]: how few boxes the first i of these elements are, in order.
std::vector<std::size_t> fewest_boxes(const std::vector<Shape>& elements) {
  std::vector<std::size_t> fewest(elements.size() + 1, elements.size());
  fewest[0] = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    Shape low = elements[i], high = low;
    for (std::size_t j = i; j < elements.size(); ++j) {
      std::int64_t bounding = 1;
      for (std::size_t d = 0; d < low.size(); ++d) {
        low[d] = std::min(low[d], elements[j][d]);
        high[d] = std::max(high[d], elements[j][d]);
        bounding *= high[d] - low[d] + 1;
      }
      if (bounding == static_cast<std::int64_t>(j - i + 1))
        fewest[j + 1] = std::min(fewest[j + 1], fewest[i] + 1);
    }
  }
  return fewest;
}

void check_ranges(const Box& of) {
  const std::vector<Shape> all = elements_of(of);
  CAPTURE(to_text(of));
  for (std::size_t first = 0; first <= all.size(); ++first) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    const auto fewest = fewest_boxes({begin, all.end()});
    for (std::size_t count = 0; first + count <= all.size(); ++count) {
      std::vector<Shape> got;
      const auto boxes =
          boxes_of_range(of, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count));
      for (const Box& box : boxes) {
        const auto some = elements_of(box);
        got.insert(got.end(), some.begin(), some.end());
      }
      CAPTURE(first);
      CAPTURE(count);
      REQUIRE(got == std::vector<Shape>(begin, begin + static_cast<std::ptrdiff_t>(count)));
      REQUIRE(boxes.size() == fewest[count]);
      REQUIRE(boxes.size() <= std::max<std::size_t>(1, 2 * of.size.size() - 1));
    }
  }
}

}  // namespace

TEST_CASE("boxes_of_range: the range's elements in order, in as few boxes as there can be") {
  check_ranges({{}, {}});
  check_ranges({{3}, {5}});
  const RandomStream random(3, "ranges");
  std::uint64_t at = 0;
  for (int round = 0; round < 60; ++round) {
    Box of;
    for (std::uint64_t d = 0; d <= static_cast<std::uint64_t>(round) % 4; ++d) {
      of.offset.push_back(static_cast<std::int64_t>(random.below(4, at++)));
      of.size.push_back(static_cast<std::int64_t>(random.below(4, at++)));
      if (of.size.back() == 0 && round % 5) of.size.back() = 3;
    }
    check_ranges(of);
  }
}

TEST_CASE("Placement: bad compositions are refused by name") {
  const DeviceMesh mesh({{"data", 2}}, 2);
  CHECK_THROWS_WITH_AS(box_of({4}, {Placement::shard(1)}, mesh, 0),
                       doctest::Contains("axis 'data' shards dimension 1"), ConfigError);
  CHECK_THROWS_AS(box_of({4}, {}, mesh, 0), ConfigError);
  CHECK_THROWS_WITH_AS(is_owner({Placement::partial()}, mesh, 0),
                       doctest::Contains("Partial over 'data'"), ConfigError);
  CHECK(to_text({Placement::shard(0)}, mesh) == "data: Shard(0)");
}
