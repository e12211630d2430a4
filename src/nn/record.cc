#include "nn/record.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <string>
#include <utility>

#include "base/error.h"

namespace tutti::nn {
namespace {

struct ClosureNode : torch::autograd::Node {
  Backward backward;
  const char* label = "";

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(backward != nullptr, label,
                ": backward a second time, after its buffers were freed");
    TORCH_CHECK(!torch::GradMode::is_enabled(), label, ": no second derivative");
    return backward(std::move(gradients));
  }
  void release_variables() override { backward = nullptr; }
  std::string name() const override { return label; }
};

}  // namespace

bool wants_gradient(const Tensors& inputs) {
  if (!torch::GradMode::is_enabled()) return false;
  for (const auto& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

void record(const Tensors& outputs, const Tensors& inputs, const char* name, Backward backward) {
  auto node = c10::make_intrusive<ClosureNode>();
  node->backward = std::move(backward);
  node->label = name;
  for (const auto& input : inputs)
    node->add_next_edge(input.defined() ? torch::autograd::impl::gradient_edge(input)
                                        : torch::autograd::Edge());
  for (const auto& output : outputs) torch::autograd::set_history(output, node);
}

Tensors recomputed(std::function<Tensors(const Tensors&)> function, const Tensors& inputs) {
  if (!wants_gradient(inputs)) return function(inputs);
  Tensors outputs;
  {
    torch::NoGradGuard no_grad;
    outputs = function(inputs);
  }
  record(outputs, inputs, "recomputed",
         [function = std::move(function), inputs](Tensors&& gradients) {
           torch::AutoGradMode with_grad(true);
           Tensors again, results, wanted;
           for (const auto& input : inputs)
             again.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad())
                                             : input);
           const Tensors redone = function(again);
           for (std::size_t i = 0; i < redone.size(); ++i)
             if (gradients[i].defined()) {
               results.push_back(redone[i]);
               wanted.push_back(gradients[i]);
             }
           if (!results.empty()) torch::autograd::backward(results, wanted);
           Tensors out;
           for (const auto& input : again)
             out.push_back(input.defined() ? input.grad() : torch::Tensor());
           return out;
         });
  return outputs;
}

}  // namespace tutti::nn
