#include "mesh/box.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {

Box whole(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), shape};
}

std::int64_t element_count(const Box& box) {
  std::int64_t count = 1;
  for (const std::int64_t size : box.size) count *= size;
  return count;
}

Box intersect(const Box& a, const Box& b) {
  TUTTI_ASSERT(a.size.size() == b.size.size(), "boxes of ", a.size.size(), " and ", b.size.size(),
               " dimensions");
  Box both = a;
  for (std::size_t d = 0; d < a.size.size(); ++d) {
    const std::int64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    both.offset[d] = begin;
    both.size[d] = std::max<std::int64_t>(0, end - begin);
  }
  return both;
}

bool contains(const Box& outer, const Box& inner) {
  return element_count(inner) == 0 || intersect(outer, inner) == inner;
}

namespace {

// `box` is whole from dimension `dim` on, and one index wide before it.
void add_range(Box box, std::size_t dim, std::int64_t first, std::int64_t count,
               std::vector<Box>& out) {
  if (count == 0) return;
  if (count == element_count(box)) return out.push_back(std::move(box));
  std::int64_t row = 1;
  for (std::size_t d = dim + 1; d < box.size.size(); ++d) row *= box.size[d];
  const auto rows = [&](std::int64_t begin, std::int64_t size) {
    Box some = box;
    some.offset[dim] += begin;
    some.size[dim] = size;
    return some;
  };
  const std::int64_t head = std::min(count, (row - first % row) % row);
  if (head > 0) add_range(rows(first / row, 1), dim + 1, first % row, head, out);
  const std::int64_t next = first + head, whole_rows = (count - head) / row;
  if (whole_rows > 0) out.push_back(rows(next / row, whole_rows));
  const std::int64_t tail = count - head - whole_rows * row;
  if (tail > 0) add_range(rows(next / row + whole_rows, 1), dim + 1, 0, tail, out);
}

}  // namespace

std::vector<Box> boxes_of_range(const Box& of, std::int64_t first, std::int64_t count) {
  TUTTI_ASSERT(first >= 0 && count >= 0 && first + count <= element_count(of));
  std::vector<Box> boxes;
  add_range(of, 0, first, count, boxes);
  return boxes;
}

std::string to_text(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.size.size(); ++d)
    text += str(d ? ", " : "", box.offset[d], ":", box.offset[d] + box.size[d]);
  return text + "]";
}

}  // namespace tutti
