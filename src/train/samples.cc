#include "train/samples.h"

#include "base/error.h"

namespace tutti::train {

TensorSamples::TensorSamples(std::vector<torch::Tensor> tensors, bool shuffle, std::uint64_t seed)
    : tensors_(std::move(tensors)), size_(0), shuffle_(shuffle), seed_(seed) {
  if (tensors_.empty() || tensors_[0].dim() == 0 || tensors_[0].size(0) == 0)
    throw ConfigError("TensorSamples: needs at least one sample along the first dimension");
  size_ = tensors_[0].size(0);
  for (const torch::Tensor& tensor : tensors_)
    if (tensor.dim() == 0 || tensor.size(0) != size_)
      throw ConfigError(str("TensorSamples: all tensors need the same first dimension; got ", size_,
                            " and ", tensor.dim() ? tensor.size(0) : 0));
}

parallel::Batch TensorSamples::batch(std::int64_t first, std::int64_t count) {
  const torch::Tensor rows = torch::empty({count}, torch::kLong);
  auto* row = rows.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t epoch = (first + i) / size_, index = (first + i) % size_;
    row[i] = index;
    if (!shuffle_) continue;
    const Permutation order(static_cast<std::uint64_t>(size_),
                            RandomStream(seed_, "samples", static_cast<std::uint64_t>(epoch)));
    row[i] = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(index)));
  }
  parallel::Batch batch;
  for (const torch::Tensor& tensor : tensors_) batch.push_back(tensor.index_select(0, rows));
  return batch;
}

}  // namespace tutti::train
