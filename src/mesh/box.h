// Boxes: which part of a global tensor something is. Checkpoints, placements and resharding all
// speak in boxes; no other description of "my part" exists.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

// The half-open index range [offset[d], offset[d] + size[d]) in every dimension d. A scalar has no
// dimensions and one element. A box with any size 0 is empty.
struct Box {
  std::vector<std::int64_t> offset, size;

  bool operator==(const Box&) const = default;
};

// All of a tensor of this shape.
Box whole(const std::vector<std::int64_t>& shape);

std::int64_t element_count(const Box& box);

// The indices in both. Empty (a size of 0 somewhere) when they do not meet. Both must have the same
// number of dimensions.
Box intersect(const Box& a, const Box& b);

// Whether every index of `inner` lies in `outer`; an empty box lies in every box.
bool contains(const Box& outer, const Box& inner);

// Elements [first, first + count) of `of`, counted in row-major order, as disjoint boxes in that
// order: as few as it takes, at most 2 x dimensions - 1. Each box's elements lie side by side in
// the range.
std::vector<Box> boxes_of_range(const Box& of, std::int64_t first, std::int64_t count);

// "[0:4, 8:16]".
std::string to_text(const Box& box);

}  // namespace tutti
