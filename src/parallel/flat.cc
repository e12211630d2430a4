#include "parallel/flat.h"

namespace tutti::parallel {

torch::Tensor view_of(const torch::Tensor& flat, const Piece& piece) {
  return flat.narrow(0, piece.offset, piece.size).view(piece.shape);
}

std::vector<Bucket> make_buckets(const std::vector<Piece>& pieces, std::int64_t total_size,
                                 std::int64_t bucket_bytes, std::int64_t element_bytes) {
  std::vector<Bucket> buckets;
  std::int64_t end_offset = total_size;
  for (std::size_t end = pieces.size(); end > 0;) {
    std::size_t first = end - 1;
    while (first > 0 && (end_offset - pieces[first - 1].offset) * element_bytes <= bucket_bytes)
      --first;
    buckets.push_back({first, end, pieces[first].offset, end_offset - pieces[first].offset});
    end_offset = pieces[first].offset;
    end = first;
  }
  return buckets;
}

}  // namespace tutti::parallel
