// How parameters lie in a flat buffer, and how that is cut over data ranks: pure arithmetic.
//
// Pieces (parameters) lie one after another in registration order: neighbours in the model are
// neighbours in memory, which lets a layer run adjacent weights as one matrix product, and
// optimizer, norm and reductions are single passes. Gaps between them are zero and stay zero. A
// bucket is a run of whole pieces. A bucket is cut in as many parts as there are data ranks, of
// about equal size, at places that are a piece's first element or a multiple of 4096 elements
// behind it, so that the gradient's norm (optim/norm.h) has the same bits however it is cut. Parts
// may be empty.
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
  // What counts for the size of a bucket: alike on ranks that hold other parts of the parameter,
  // which may be of other sizes, so that their buckets have the same pieces.
  std::int64_t weight = size;
};

// The part of a flat buffer that is `piece`, in its shape.
inline torch::Tensor view_of(const torch::Tensor& flat, const Piece& piece) {
  return flat.narrow(0, piece.offset, piece.size).view(piece.shape);
}

struct Bucket {
  std::size_t first_piece = 0, end_piece = 0;
  std::int64_t offset = 0, size = 0;  // elements, gaps included
};

// parts + 1 ascending offsets in the flat buffer, from the bucket's first element to its end.
std::vector<std::int64_t> cut_bucket(const std::vector<Piece>& pieces, const Bucket& bucket,
                                     int parts);

// The elements of piece `piece` in [begin, end) of the flat buffer: where they begin in the flat
// buffer, how many, and which of the piece's elements is the first.
struct Fragment {
  std::size_t piece = 0;
  std::int64_t offset = 0, size = 0, first = 0;
};
std::vector<Fragment> fragments_of(const std::vector<Piece>& pieces, const Bucket& bucket,
                                   std::int64_t begin, std::int64_t end);

// One bucket for all pieces whose names are a unit's or begin with it and a dot (those must be
// neighbours); of the others, runs whose weights come to about `bucket_bytes`, at least one piece
// each. In the order in which backward finishes them, from the last piece to the first; `unit` is
// the index in `units` or -1.
struct UnitBucket {
  Bucket bucket;
  int unit = -1;
};
std::vector<UnitBucket> make_buckets(const std::vector<Piece>& pieces,
                                     const std::vector<std::string>& units, std::int64_t total_size,
                                     std::int64_t bucket_bytes, std::int64_t element_bytes);

}  // namespace tutti::parallel
