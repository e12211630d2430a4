#include "parallel/places.h"

#include "mesh/box.h"

namespace tutti::parallel {
namespace {

// Elements from one index of dimension d to the next.
std::int64_t stride_of(const std::vector<std::int64_t>& shape, std::size_t d) {
  std::int64_t stride = 1;
  for (std::size_t inner = d + 1; inner < shape.size(); ++inner) stride *= shape[inner];
  return stride;
}

// Row `row` of the box's first `dims` dimensions: where it begins in the whole tensor.
std::int64_t begin_of(std::int64_t row, const Box& box, std::size_t dims,
                      const std::vector<std::int64_t>& shape) {
  std::int64_t place = 0;
  for (std::size_t d = dims; d-- > 0; row /= box.size[d])
    place += (box.offset[d] + row % box.size[d]) * stride_of(shape, d);
  return place;
}

}  // namespace

// Up to the last dimension that is cut, each row of each box is a run.
std::vector<optim::Run> places_of(const Cut& cut) {
  if (cut.boxes.size() == 1 && cut.boxes[0] == whole(cut.shape)) return {};
  std::size_t last = 0;
  for (std::size_t d = 0; d < cut.shape.size(); ++d)
    if (cut.boxes[0].size[d] != cut.shape[d]) last = d;
  std::int64_t rows = 1, first = 0;
  for (std::size_t d = 0; d < last; ++d) rows *= cut.boxes[0].size[d];
  std::vector<optim::Run> runs;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const Box& box : cut.boxes) {
      const std::int64_t stride = stride_of(cut.shape, last), size = box.size[last] * stride;
      const std::int64_t place = begin_of(row, box, last, cut.shape) + box.offset[last] * stride;
      if (size == 0) continue;
      if (runs.empty() || place - runs.back().place != first - runs.back().first)
        runs.push_back({first, place});
      first += size;
    }
  return runs;
}

}  // namespace tutti::parallel
