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

std::string to_text(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.size.size(); ++d)
    text += str(d ? ", " : "", box.offset[d], ":", box.offset[d] + box.size[d]);
  return text + "]";
}

}  // namespace tutti
