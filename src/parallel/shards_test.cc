#include "parallel/shards.h"

#include <doctest/doctest.h>

#include "optim/norm.h"

namespace tutti::parallel {
namespace {

std::vector<Piece> pieces_of(const std::vector<std::pair<std::string, std::int64_t>>& sizes) {
  std::vector<Piece> pieces;
  std::int64_t at = 0;
  for (const auto& [name, size] : sizes) {
    pieces.push_back({name, {size}, at, size, {}});
    at += (size + 15) / 16 * 16;
  }
  return pieces;
}

const auto some = pieces_of({{"e", 50000}, {"a.w", 9001}, {"a.b", 7}, {"b.w", 4096}, {"n", 3}});

TEST_CASE("parts cover a bucket in order and never cut a norm block") {
  const std::int64_t total = some.back().offset + 16;
  for (const std::int64_t bytes : {4, 60000, 10000000})
    for (const auto& [bucket, unit] : make_buckets(some, {}, total, bytes, 4))
      for (int parts = 1; parts <= 9; ++parts) {
        const auto cuts = cut_bucket(some, bucket, parts);
        REQUIRE(static_cast<int>(cuts.size()) == parts + 1);
        CHECK(cuts.front() == bucket.offset);
        CHECK(cuts.back() == bucket.offset + bucket.size);
        std::int64_t covered = 0;
        for (int i = 0; i < parts; ++i) {
          const auto at = static_cast<std::size_t>(i);
          CHECK(cuts[at] <= cuts[at + 1]);
          CHECK(cuts[at + 1] - cuts[at] <= bucket.size / parts + 2 * optim::norm_block);
          for (const Fragment& f : fragments_of(some, bucket, cuts[at], cuts[at + 1])) {
            CHECK(f.first % optim::norm_block == 0);
            CHECK(some[f.piece].offset + f.first == f.offset);
            covered += f.size;
          }
        }
        std::int64_t whole = 0;
        for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) whole += some[p].size;
        CHECK(covered == whole);
      }
}

TEST_CASE("a unit is one bucket; the rest are cut by bytes") {
  const auto buckets = make_buckets(some, {"a", "b"}, some.back().offset + 16, 1 << 20, 4);
  REQUIRE(buckets.size() == 4);
  CHECK(buckets[0].unit == -1);
  CHECK(buckets[1].unit == 1);
  CHECK(buckets[2].unit == 0);
  CHECK(buckets[2].bucket.first_piece == 1);
  CHECK(buckets[2].bucket.end_piece == 3);
  CHECK(buckets[3].unit == -1);
  std::int64_t total = 0;
  for (const UnitBucket& b : buckets) total += b.bucket.size;
  CHECK(total == some.back().offset + 16);
}

TEST_CASE("ranks that hold parts of other sizes have the same pieces in their buckets") {
  auto large = pieces_of({{"a", 300}, {"b", 200}, {"c", 40}}), small = large;
  for (Piece& piece : small) piece.size -= 33;
  for (const std::int64_t bytes : {100, 1000, 2000, 4000}) {
    const auto ours = make_buckets(large, {}, 600, bytes, 4);
    const auto theirs = make_buckets(small, {}, 600, bytes, 4);
    REQUIRE(ours.size() == theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i)
      CHECK(ours[i].bucket.first_piece == theirs[i].bucket.first_piece);
  }
}

}  // namespace
}  // namespace tutti::parallel
