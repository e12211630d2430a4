// batch.micro: auto, which a recipe holds as 0: the micro-batch that a memory budget allows.
#pragma once
#include <cstdint>
#include <string>

#include "plan/layout.h"
#include "recipe/recipe.h"

namespace tutti::plan {

struct MicroBatch {
  std::int64_t samples = 0;
  double bytes = 0;  // what the fullest worker holds, by plan/memory.h
  std::string why;   // a line for people
};

// Among the divisors of batch.global that the layout takes and whose estimate fits memory_budget on
// every worker, with recompute auto recomputing the least that makes them fit: the one of the least
// relative_time, the larger of two alike. Without recompute auto that is the largest. ConfigError
// that names the least budget that would do, if none fits. The model's sizes must be known (no
// model.from); a vocab that is not known counts as nothing.
MicroBatch choose_micro_batch(const recipe::Recipe& recipe);

// Of a step with recipe.batch.micro, in forward and backward passes of one sample through the
// slowest place of the pipeline: a layer that is recomputed whole adds a third of its time, one
// that is selectively recomputed a thirtieth; each micro-batch costs what 32 tokens do besides, as
// it goes through weights and gradients once. The pipeline's bubble is left out.
double relative_time(const recipe::Recipe& recipe, const Layout& layout);

}  // namespace tutti::plan
