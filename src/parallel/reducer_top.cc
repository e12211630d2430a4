// The largest elements of each tensor (Aji & Heafield, "Sparse communication for distributed
// gradient descent", 2017; Lin et al., "Deep gradient compression", 2018): all ranks get the places
// and values of all, and add them in the order of the ranks.
#include <algorithm>
#include <cmath>

#include "parallel/reducer.h"

namespace tutti::parallel {
namespace {

class TopReducer : public Reducer {
 public:
  explicit TopReducer(Setup setup) : Reducer(std::move(setup)) {}

 private:
  // How many of a piece are sent: one at least.
  std::int64_t count_of(std::size_t piece) const {
    const std::int64_t size = setup_.pieces[piece].size;
    const double share = std::ceil(setup_.compress.ratio * static_cast<double>(size));
    return std::min(size, std::max(static_cast<std::int64_t>(share), std::int64_t{1}));
  }

  std::shared_ptr<collective::Work> begin(std::size_t at, torch::Tensor input,
                                          torch::Tensor sum) override {
    const Bucket& bucket = region(at).bucket;
    std::vector<torch::Tensor> places, values;
    for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) {
      torch::Tensor piece = piece_of(input, at, p);
      places.push_back(std::get<1>(piece.abs().topk(count_of(p), 0, true, false)));
      values.push_back(piece.index_select(0, places.back()));
      piece.index_fill_(0, places.back(), 0);
    }
    // Places are below 2^31 in a bucket that anyone reduces at once; int64 would be sent for
    // nought.
    const torch::Tensor place = torch::cat(places).to(torch::kInt), value = torch::cat(values);
    const torch::Tensor sent = torch::cat({value.view(torch::kByte), place.view(torch::kByte)});
    const torch::Tensor all = torch::empty({ranks(), sent.numel()}, torch::kByte);
    const collective::Counts counts(static_cast<std::size_t>(ranks()), sent.numel());
    return std::make_shared<Steps>(
        setup_.group->all_gather_v_async(sent, all.view({-1}), counts),
        [this, at, all, sum, count = value.numel()] { finish(at, all, sum, count); });
  }

  void finish(std::size_t at, const torch::Tensor& all, torch::Tensor sum, std::int64_t count) {
    const Bucket& bucket = region(at).bucket;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sum.element_size());
    sum.zero_();
    for (int r = 0; r < ranks(); ++r) {
      const torch::Tensor one = all[r].clone();  // aligned
      const torch::Tensor values = one.narrow(0, 0, bytes).view(sum.scalar_type());
      const torch::Tensor places =
          one.narrow(0, bytes, one.numel() - bytes).view(torch::kInt).to(torch::kLong);
      std::int64_t first = 0;
      for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) {
        const std::int64_t some = count_of(p);
        piece_of(sum, at, p)
            .index_add_(0, places.narrow(0, first, some), values.narrow(0, first, some));
        first += some;
      }
    }
  }
};

}  // namespace

std::unique_ptr<Reducer> make_top_reducer(Reducer::Setup setup) {
  return std::make_unique<TopReducer>(std::move(setup));
}

}  // namespace tutti::parallel
