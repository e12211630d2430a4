// Hand-written backward passes without the cost of torch::autograd::Function: `record` gives
// tensors that were computed outside autograd a node whose backward is a C++ closure. The closure
// holds what it needs (inputs, detached outputs); nothing watches in-place changes of them, and a
// second derivative is not available.
#pragma once
#include <torch/torch.h>

#include <functional>
#include <vector>

namespace tutti::nn {

using Tensors = std::vector<torch::Tensor>;
// Gradients of the outputs (some may be undefined) -> gradients of the inputs (undefined: none).
using Backward = std::function<Tensors(Tensors&& gradients)>;

// True if a backward pass will want gradients through an operation on `inputs`.
bool wants_gradient(const Tensors& inputs);

// Call only if wants_gradient(inputs). `outputs` must be fresh and without history.
void record(const Tensors& outputs, const Tensors& inputs, const char* name, Backward backward);

// Recomputation of activations (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
// 2016): runs `function` without remembering anything but `inputs`; backward runs it again.
// `function` must be pure, parameters it captures aside. Same bits as calling it directly.
Tensors recomputed(std::function<Tensors(const Tensors&)> function, const Tensors& inputs);

}  // namespace tutti::nn
