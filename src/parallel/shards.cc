#include "parallel/shards.h"

#include <algorithm>

#include "base/error.h"
#include "optim/norm.h"

namespace tutti::parallel {
namespace {

std::int64_t bucket_end(const Bucket& bucket) { return bucket.offset + bucket.size; }

// The legal place nearest to `at`.
std::int64_t nearest_cut(const std::vector<Piece>& pieces, const Bucket& bucket, std::int64_t at) {
  std::size_t p = bucket.first_piece;
  while (p + 1 < bucket.end_piece && pieces[p + 1].offset <= at) ++p;
  const std::int64_t next = p + 1 < bucket.end_piece ? pieces[p + 1].offset : bucket_end(bucket);
  const std::int64_t into = at - pieces[p].offset;
  const std::int64_t low = pieces[p].offset + into / optim::norm_block * optim::norm_block;
  std::int64_t high = low + optim::norm_block;
  if (high >= pieces[p].offset + pieces[p].size) high = next;
  return at - low <= high - at ? low : high;
}

int unit_of(const std::string& name, const std::vector<std::string>& units) {
  for (std::size_t u = 0; u < units.size(); ++u)
    if (name == units[u] || name.starts_with(units[u] + ".")) return static_cast<int>(u);
  return -1;
}

}  // namespace

std::vector<std::int64_t> cut_bucket(const std::vector<Piece>& pieces, const Bucket& bucket,
                                     int parts) {
  std::vector<std::int64_t> cuts = {bucket.offset};
  for (int part = 1; part < parts; ++part)
    cuts.push_back(std::max(
        cuts.back(), nearest_cut(pieces, bucket, bucket.offset + bucket.size * part / parts)));
  cuts.push_back(bucket_end(bucket));
  return cuts;
}

std::vector<Fragment> fragments_of(const std::vector<Piece>& pieces, const Bucket& bucket,
                                   std::int64_t begin, std::int64_t end) {
  std::vector<Fragment> fragments;
  for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) {
    const std::int64_t from = std::max(begin, pieces[p].offset);
    const std::int64_t to = std::min(end, pieces[p].offset + pieces[p].size);
    if (from < to) fragments.push_back({p, from, to - from, from - pieces[p].offset});
  }
  return fragments;
}

std::vector<UnitBucket> make_buckets(const std::vector<Piece>& pieces,
                                     const std::vector<std::string>& units, std::int64_t total_size,
                                     std::int64_t bucket_bytes, std::int64_t element_bytes) {
  std::vector<UnitBucket> buckets;
  std::int64_t end_offset = total_size;
  for (std::size_t end = pieces.size(); end > 0;) {
    std::size_t first = end - 1;
    const int unit = unit_of(pieces[first].name, units);
    std::int64_t weight = aligned(pieces[first].weight);
    const auto joins = [&](std::size_t p) {
      if (unit_of(pieces[p].name, units) != unit) return false;
      weight += aligned(pieces[p].weight);
      return unit >= 0 || weight * element_bytes <= bucket_bytes;
    };
    while (first > 0 && joins(first - 1)) --first;
    buckets.push_back(
        {{first, end, pieces[first].offset, end_offset - pieces[first].offset}, unit});
    end_offset = pieces[first].offset;
    end = first;
  }
  return buckets;
}

}  // namespace tutti::parallel
