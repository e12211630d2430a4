// Selective recomputation (Korthikanti et al., "Reducing activation recomputation in large
// transformer models", 2022, section 5): what is cheap to compute and large to keep is let go of
// after the forward pass and computed again, into the same tensor, when backward comes to it.
#pragma once
#include <torch/torch.h>

#include <functional>

#include "nn/record.h"

namespace tutti::nn {

// Frees the memory of `x` until a gradient reaches one of `readers`: those operations that read x
// must have run, their results must be among `readers`, and nothing else may read x. `again` gives
// the same values anew; it must not hold x. Does nothing if no reader wants a gradient.
void discard(const torch::Tensor& x, const Tensors& readers, std::function<torch::Tensor()> again);

}  // namespace tutti::nn
