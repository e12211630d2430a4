// For tests: an operation against its slow twin, values and gradients.
#pragma once
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "nn/ops.h"

namespace tutti::nn::testing {

using Values = std::vector<torch::Tensor>;
using Function = std::function<Values(const Values&)>;

// Largest difference, over the larger of 1 and b's largest value.
inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  if (a.numel() == 0) return 0;
  const torch::Tensor wide = b.to(torch::kDouble);
  const double scale = std::max(1.0, wide.abs().max().item<double>());
  return (a.to(torch::kDouble) - wide).abs().max().item<double>() / scale;
}

struct Outcome {
  Values outputs, gradients;
};

// Every output is contracted with a fixed random tensor, so that all gradients are exercised.
// Inputs that are undefined or whole numbers are passed as they are and have no gradient.
inline Outcome evaluate(const Function& function, const Values& inputs, torch::ScalarType type) {
  Values leaves;
  for (const auto& input : inputs)
    leaves.push_back(!input.defined() || !input.is_floating_point()
                         ? input
                         : input.to(type).clone().requires_grad_(true));
  Outcome outcome{function(leaves), {}};
  torch::manual_seed(7);
  torch::Tensor total;
  for (const auto& output : outcome.outputs) {
    const torch::Tensor part = (output * torch::randn(output.sizes()).to(type)).sum();
    total = total.defined() ? total + part : part;
  }
  total.backward();
  for (const auto& leaf : leaves)
    if (leaf.defined() && leaf.is_floating_point()) outcome.gradients.push_back(leaf.grad());
  return outcome;
}

inline void check_near(const Outcome& ours, const Outcome& theirs, double tolerance) {
  for (std::size_t i = 0; i < ours.outputs.size(); ++i) {
    CAPTURE(i);
    CHECK(distance(ours.outputs[i], theirs.outputs[i]) < tolerance);
  }
  for (std::size_t i = 0; i < ours.gradients.size(); ++i) {
    CAPTURE(i);
    REQUIRE(ours.gradients[i].defined());
    CHECK(distance(ours.gradients[i], theirs.gradients[i]) < tolerance);
  }
}

// The fused fp32 results against the plain ones in fp64.
inline void check_twins(const Function& function, const Values& inputs, double tolerance = 2e-6) {
  const Outcome ours = evaluate(function, inputs, torch::kFloat);
  PlainOps plain;
  check_near(ours, evaluate(function, inputs, torch::kDouble), tolerance);
}

}  // namespace tutti::nn::testing
