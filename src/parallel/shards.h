// How flat parameters are cut over data ranks: pure arithmetic.
//
// Pieces (parameters) lie one after another in a flat buffer; a bucket is a run of whole pieces. A
// bucket is cut in as many parts as there are data ranks, of about equal size, at places that are a
// piece's first element or a multiple of 4096 elements behind it, so that the gradient's norm
// (optim/norm.h) has the same bits however it is cut. Parts may be empty.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/flat.h"

namespace tutti::parallel {

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
// neighbours); the others as make_buckets() has them. In backward order; `unit` is the index in
// `units` or -1.
struct UnitBucket {
  Bucket bucket;
  int unit = -1;
};
std::vector<UnitBucket> make_unit_buckets(const std::vector<Piece>& pieces,
                                          const std::vector<std::string>& units,
                                          std::int64_t total_size, std::int64_t bucket_bytes,
                                          std::int64_t element_bytes);

}  // namespace tutti::parallel
