#include "parallel/reducer.h"

#include <utility>

namespace tutti::parallel {

Reducer::Reducer(Setup setup) : setup_(std::move(setup)) {
  error_ = torch::zeros({setup_.total}, setup_.type);
  next_error_ = torch::zeros_like(error_);
}

void Reducer::keep_sum_error() {
  std::int64_t own = 0;
  const auto at = static_cast<std::size_t>(rank());
  for (const Region& region : setup_.regions) {
    sum_offsets_.push_back(own);
    own += region.cuts[at + 1] - region.cuts[at];
  }
  sum_error_ = torch::zeros({own}, setup_.type);
  next_sum_error_ = torch::zeros_like(sum_error_);
}

std::shared_ptr<collective::Work> Reducer::start(std::size_t at, const torch::Tensor& values) {
  const torch::NoGradGuard no_grad;
  const Bucket& bucket = region(at).bucket;
  torch::Tensor input = next_error_.narrow(0, bucket.offset, bucket.size);
  torch::add_out(input, values, error_.narrow(0, bucket.offset, bucket.size));
  return begin(at, input, values);
}

void Reducer::commit() {
  std::swap(error_, next_error_);
  std::swap(sum_error_, next_sum_error_);
}

torch::Tensor Reducer::piece_of(const torch::Tensor& values, std::size_t at,
                                std::size_t piece) const {
  const Piece& one = setup_.pieces[piece];
  return values.narrow(0, one.offset - region(at).bucket.offset, one.size);
}

std::int64_t Reducer::bytes() const {
  std::int64_t bytes = 0;
  for (const auto* tensor : {&error_, &next_error_, &sum_error_, &next_sum_error_})
    if (tensor->defined()) bytes += static_cast<std::int64_t>(tensor->nbytes());
  return bytes;
}

void Steps::wait() {
  if (const auto rest = std::exchange(rest_, nullptr)) {
    first_->wait();
    const torch::NoGradGuard no_grad;
    rest();
  }
}

std::unique_ptr<Reducer> make_reducer(Reducer::Setup setup) {
  const std::string& kind = setup.compress.kind;
  if (kind == "topk") return make_top_reducer(std::move(setup));
  if (kind == "powersgd") return make_factor_reducer(std::move(setup));
  return make_block_reducer(std::move(setup));
}

}  // namespace tutti::parallel
