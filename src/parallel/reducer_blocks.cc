// Rounded in blocks and sent twice: each rank's part of what all others have, which it sums, and
// the sum, rounded again (Tang et al., "1-bit Adam", 2021, algorithm 2). The rank that sums keeps
// what this second rounding took away, for the next sum. An all-reduce of n bytes sends as many.
#include <numeric>

#include "base/error.h"
#include "parallel/compression.h"
#include "parallel/reducer.h"

namespace tutti::parallel {
namespace {

class BlockReducer : public Reducer {
 public:
  explicit BlockReducer(Setup setup)
      : Reducer(std::move(setup)), kind_(compression_of(setup_.compress.kind)) {
    if (!setup_.scatters) keep_sum_error();
    for (const Region& region : setup_.regions) {
      parts_.emplace_back();
      for (std::size_t r = 0; r + 1 < region.cuts.size(); ++r)
        parts_.back().push_back(part_of(region, r));
    }
  }

 private:
  // What one rank sums of a region: fragments of pieces, so that no block spans two.
  struct Part {
    std::vector<Fragment> fragments;
    std::int64_t offset = 0, size = 0;  // of the region's values
    std::int64_t bytes = 0;             // rounded
  };

  Part part_of(const Region& region, std::size_t rank) const {
    Part part;
    part.offset = region.cuts[rank] - region.bucket.offset;
    part.size = region.cuts[rank + 1] - region.cuts[rank];
    part.fragments =
        fragments_of(setup_.pieces, region.bucket, region.cuts[rank], region.cuts[rank + 1]);
    for (Fragment& fragment : part.fragments) {
      fragment.offset -= region.cuts[rank];
      part.bytes += compressed_size(kind_, fragment.size);
    }
    return part;
  }

  // visit(the part's values, their bytes) of each fragment.
  template <class Visit>
  void for_fragments(const Part& part, const torch::Tensor& values, const torch::Tensor& bytes,
                     const Visit& visit) const {
    std::int64_t at = 0;
    for (const Fragment& fragment : part.fragments) {
      const std::int64_t size = compressed_size(kind_, fragment.size);
      visit(values.narrow(0, fragment.offset, fragment.size), bytes.narrow(0, at, size));
      at += size;
    }
  }

  // Leaves in `values` what was not sent.
  void send(const Part& part, const torch::Tensor& values, const torch::Tensor& bytes) const {
    for_fragments(part, values, bytes, [&](const auto& some, const auto& sent) {
      compress(kind_, some, sent);
      add_expanded(kind_, sent, some, -1);
    });
  }
  void add(const Part& part, const torch::Tensor& values, const torch::Tensor& bytes) const {
    for_fragments(part, values, bytes,
                  [&](const auto& some, const auto& sent) { add_expanded(kind_, sent, some); });
  }

  static torch::Tensor bytes_for(const collective::Counts& counts) {
    return torch::empty({std::accumulate(counts.begin(), counts.end(), std::int64_t{0})},
                        torch::kByte);
  }

  std::shared_ptr<collective::Work> begin(std::size_t at, torch::Tensor input,
                                          torch::Tensor sum) override {
    const std::vector<Part>& parts = parts_[at];
    const Part& own = parts[static_cast<std::size_t>(rank())];
    collective::Counts sizes;
    for (const Part& part : parts) sizes.push_back(part.bytes);
    const collective::Counts own_sizes(parts.size(), own.bytes);
    const torch::Tensor sent = bytes_for(sizes), received = bytes_for(own_sizes);
    std::int64_t first = 0;
    for (const Part& part : parts) {
      send(part, input.narrow(0, part.offset, part.size), sent.narrow(0, first, part.bytes));
      first += part.bytes;
    }
    return std::make_shared<Steps>(
        setup_.group->all_to_all_v_async(sent, received, sizes, own_sizes),
        [this, at, sum, sent, received, sizes] { finish(at, sum, sent, received, sizes); });
  }

  // The rank's own part, and then that of all.
  void finish(std::size_t at, const torch::Tensor& sum, const torch::Tensor& sent,
              const torch::Tensor& received, const collective::Counts& sizes) {
    const std::vector<Part>& parts = parts_[at];
    const Part& own = parts[static_cast<std::size_t>(rank())];
    const torch::Tensor mine = setup_.scatters
                                   ? sum.narrow(0, own.offset, own.size).zero_()
                                   : next_sum_error_.narrow(0, sum_offset(at), own.size)
                                         .copy_(sum_error_.narrow(0, sum_offset(at), own.size));
    for (int r = 0; r < ranks(); ++r) add(own, mine, received.narrow(0, r * own.bytes, own.bytes));
    if (setup_.scatters) return;
    const torch::Tensor again = torch::empty({own.bytes}, torch::kByte);
    send(own, mine, again);
    setup_.group->all_gather_v(again, sent, sizes);
    sum.zero_();
    std::int64_t first = 0;
    for (const Part& part : parts) {
      add(part, sum.narrow(0, part.offset, part.size), sent.narrow(0, first, part.bytes));
      first += part.bytes;
    }
  }

  const Compression kind_;
  std::vector<std::vector<Part>> parts_;  // [region][rank]
};

}  // namespace

std::unique_ptr<Reducer> make_block_reducer(Reducer::Setup setup) {
  return std::make_unique<BlockReducer>(std::move(setup));
}

}  // namespace tutti::parallel
