// Language modelling as a task and as samples: nn's models over data's tokens.
#pragma once
#include <memory>

#include "checkpoint/loader.h"
#include "data/sampler.h"
#include "nn/model.h"
#include "parallel/staged_task.h"
#include "recipe/recipe.h"
#include "train/samples.h"

namespace tutti::train {

// Batches are {inputs, targets[, documents]} as nn::TokenBatch has them.
class LanguageTask : public parallel::StagedTask {
 public:
  LanguageTask(std::shared_ptr<nn::LanguageModel> model, const recipe::Recipe& recipe);
  torch::nn::Module& module() override { return *model_; }
  nn::LanguageModel& model() { return *model_; }
  parallel::Loss loss(const parallel::Batch& batch) override;
  std::int64_t layers() const override { return model_->config().layers; }
  Output run_stage(const nn::Stage& stage, const torch::Tensor& in,
                   const parallel::Batch& batch) override;
  bool in_stage(const nn::Stage& stage, const std::string& parameter) const override {
    return model_->in_stage(stage, parameter);
  }
  std::vector<std::int64_t> activation_shape(const parallel::Batch& batch) const override;
  parallel::Axes axes() const override { return {model_->axes(), model_->grains()}; }
  std::vector<std::string> units(const nn::Stage& stage) const override;
  double flops_per_sample() const override;
  std::string description() const override;  // the recipe's group "model"
  bool exact_buffers() const override { return true; }
  bool input_first(const std::string& parameter) const override;
  void at(std::int64_t step, std::int64_t micro_batch) override;
  torch::Tensor take_counts() override { return model_->take_routed_counts(); }
  void counted(const torch::Tensor& sum) override { model_->update_balance(sum); }

 private:
  std::shared_ptr<nn::LanguageModel> model_;
  std::int64_t sequence_, micro_;
  std::uint64_t seed_;
};

class TokenSamples : public Samples {
 public:
  TokenSamples(const data::Sampler& sampler, bool documents)
      : sampler_(sampler), documents_(documents) {}
  std::int64_t epoch_size() const override { return static_cast<std::int64_t>(sampler_.samples()); }
  std::int64_t targets_per_sample() const override { return sampler_.sequence(); }
  std::string fingerprint() const override { return sampler_.fingerprint(); }
  parallel::Batch batch(std::int64_t first, std::int64_t count) override;

 private:
  const data::Sampler& sampler_;
  bool documents_;
};

// The model that a recipe asks for, initialised (model.from: its weights; else by seed).
// `vocab` is the tokenizer's. ConfigError if the tokens do not fit the model.
std::shared_ptr<nn::LanguageModel> make_language_model(const recipe::Recipe& recipe,
                                                       std::int64_t vocab);

// The model that a checkpoint describes, without weights.
std::shared_ptr<nn::LanguageModel> make_language_model(const recipe::Recipe& recipe,
                                                       const checkpoint::Loader& checkpoint);

}  // namespace tutti::train
