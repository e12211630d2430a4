// Dropout by name (promise 4): whether an element is kept is a pure function of (seed, name, step,
// its index in the global batch), so every layout and recomputation drops the same elements.
#pragma once
#include <torch/torch.h>

#include <string>

#include "nn/model.h"

namespace tutti::nn {

// fp32: 0 with probability `rate`, else 1 / (1 - rate). The first dimension of `shape` is samples,
// of which the first is number key.first_sample of the global batch. 0 <= rate < 1.
torch::Tensor keep_mask(torch::IntArrayRef shape, double rate, const std::string& name,
                        const DropoutKey& key, torch::Device device);

}  // namespace tutti::nn
