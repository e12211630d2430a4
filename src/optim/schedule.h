// The learning rate as a pure function of the step.
#pragma once
#include <cstdint>

#include "recipe/recipe.h"

namespace tutti::optim {

struct Lengths {
  std::int64_t total = 0;   // steps of the run
  std::int64_t warmup = 0;  // steps
  std::int64_t decay = 0;   // wsd: steps of the last phase
};

// Of step s = 0, 1, ... With W = warmup, S = total, lo = min_ratio * lr:
//   s < W      lr * (s + 1) / W
//   constant   lr
//   linear     lr - (lr - lo) * t,                       t = (s - W) / max(1, S - W)
//   cosine     lo + (lr - lo) * (1 + cos(pi * t)) / 2
//   wsd        lr until S - decay, then linearly to lo at S
// t is held within [0, 1].
double learning_rate(const recipe::Schedule& schedule, double lr, std::int64_t step,
                     const Lengths& lengths);

}  // namespace tutti::optim
