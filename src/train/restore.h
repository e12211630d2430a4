// A finished or running run as a model to use: evaluation, generation, export.
#pragma once
#include <memory>
#include <optional>

#include "data/tokenizer.h"
#include "nn/model.h"
#include "recipe/recipe.h"
#include "train/worker.h"

namespace tutti::train {

// The resolved recipe of the run in `folder`; the tokenizer that the run learnt is found there even
// if the folder was moved. ConfigError if `folder` is no run.
recipe::Recipe recipe_of(const fs::path& folder);

struct Restored {
  recipe::Recipe recipe;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::shared_ptr<nn::LanguageModel> model;  // fp32 weights, eval mode
  std::int64_t step = 0;
};

// From the newest whole checkpoint, or the one of `step`. ConfigError if `folder` is no run or has
// no such checkpoint; damaged newer ones are named in a warning.
Restored restore(const fs::path& folder, std::optional<std::int64_t> step = {});

// Mean loss in nats a token over the run's validation data, and in nats a byte.
struct Evaluation {
  double loss = 0, nats_per_byte = 0;
  double targets = 0;
};
Evaluation evaluate(Restored& restored);

}  // namespace tutti::train
