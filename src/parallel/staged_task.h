// A task whose model runs in stages, one after another: what a pipeline needs of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "nn/model.h"
#include "parallel/cut.h"
#include "parallel/engine.h"
#include "recipe/recipe.h"

namespace tutti::parallel {

class StagedTask : public Task {
 public:
  struct Output {
    torch::Tensor activation;  // what the next stage is given; undefined after the last
    Loss loss;                 // after the last; before it, a part of the loss or none
  };
  virtual std::int64_t layers() const = 0;
  // Forward pass of a stage. Every stage is given the whole micro-batch; `in` is undefined for the
  // first. Running the stages in turn is loss(), bit for bit.
  virtual Output run_stage(const nn::Stage& stage, const torch::Tensor& in, const Batch& batch) = 0;
  virtual bool in_stage(const nn::Stage& stage, const std::string& parameter) const = 0;
  // Of the activation between any two stages, for this micro-batch and this rank.
  virtual std::vector<std::int64_t> activation_shape(const Batch& batch) const = 0;
  virtual Axes axes() const = 0;
  // Of the names that the model gives to Spread::before_unit, those of a stage, in their order.
  virtual std::vector<std::string> units(const nn::Stage& /*stage*/) const { return {}; }
};

// ConfigError for degrees and rules that this task's model cannot have: all at once.
void require_spreadable(const recipe::Recipe& recipe, const Task& task);

}  // namespace tutti::parallel
