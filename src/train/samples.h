// Training data as the trainer sees it: sample p of the endless order, p = 0, 1, ..., is a pure
// function of p (and of the seed), so a position is all the state there is, and no worker count,
// layout or restart can change what is learnt from.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "parallel/engine.h"

namespace tutti::train {

class Samples {
 public:
  virtual ~Samples() = default;
  virtual std::int64_t epoch_size() const = 0;  // samples in one pass, >= 1
  // Samples [first, first + count) as one batch. Called from one thread at a time.
  virtual parallel::Batch batch(std::int64_t first, std::int64_t count) = 0;
  // Tells other data apart: a run that is resumed must find what it began with.
  virtual std::string fingerprint() const { return str(epoch_size(), " samples"); }
  // Targets a sample, for tokens/s and durations in tokens.
  virtual std::int64_t targets_per_sample() const { return 1; }
};

// Tensors in memory whose first dimension is the sample, freshly shuffled each epoch.
class TensorSamples : public Samples {
 public:
  // `shuffle` false: in order, as an evaluation wants it.
  explicit TensorSamples(std::vector<torch::Tensor> tensors, bool shuffle = true,
                         std::uint64_t seed = 1);
  std::int64_t epoch_size() const override { return size_; }
  parallel::Batch batch(std::int64_t first, std::int64_t count) override;

 private:
  std::vector<torch::Tensor> tensors_;
  std::int64_t size_;
  bool shuffle_;
  std::uint64_t seed_;
};

}  // namespace tutti::train
