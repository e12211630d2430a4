// What every engine does alike in a step.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <string>

namespace tutti::parallel {

// What passes compute in: recipe::Recipe::precision.
torch::ScalarType compute_type(const std::string& precision);

// Adds micro-batch losses along the same tree as their gradients; count >= 1.
double tree_sum(const double* values, std::int64_t count);

// A module that draws from torch's generator draws by step and micro-batch (promise 4).
void seed_micro_batch(std::uint64_t seed, std::int64_t step, std::int64_t micro_batch);

}  // namespace tutti::parallel
