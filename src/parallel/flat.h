// Parameters as pieces of one flat buffer, so that the optimizer, the gradient norm and
// the reductions are single passes over contiguous memory.
//
// Order: registration order (neighbours in the model are neighbours in memory, which lets a layer
// run adjacent weights as one matrix product). Each piece starts at a multiple of 16 elements; the
// gaps are zero and stay zero.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::parallel {

// Where the piece after one of `size` elements may begin: a multiple of 16, one AVX-512 register of
// floats.
inline std::int64_t aligned(std::int64_t size) { return (size + 15) / 16 * 16; }

struct Piece {
  std::string name;  // the parameter's global name
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // elements
  std::int64_t size = 0;    // elements
  torch::Tensor parameter;  // the module's
};

// The part of a flat buffer that is `piece`, in its shape.
torch::Tensor view_of(const torch::Tensor& flat, const Piece& piece);

// Contiguous runs of whole pieces of about `bucket_bytes` (at least one piece each), in the order
// in which backward finishes them: from the last piece to the first.
struct Bucket {
  std::size_t first_piece = 0, end_piece = 0;
  std::int64_t offset = 0, size = 0;  // elements, gaps included
};
std::vector<Bucket> make_buckets(const std::vector<Piece>& pieces, std::int64_t total_size,
                                 std::int64_t bucket_bytes, std::int64_t element_bytes);

}  // namespace tutti::parallel
