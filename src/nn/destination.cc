#include "nn/destination.h"

#include "base/error.h"
#include "nn/record.h"

namespace tutti::nn {
namespace {

GradSink::Target ask(const torch::Tensor& parameter, Use use) {
  GradSink* sink = parameter.is_leaf() ? grad_sink() : nullptr;
  if (!sink) return {};
  GradSink::Target target = sink->target(parameter);
  if (target.grad.defined()) {
    TUTTI_ASSERT(target.grad.is_contiguous() && target.grad.sizes() == parameter.sizes());
    if (use == Use::second) target.accumulate = true;
  }
  return target;
}

void tell_ready(const torch::Tensor& parameter, Use use) {
  if (use != Use::first) grad_sink()->ready(parameter);
}

}  // namespace

Destination::Destination(const torch::Tensor& parameter, Use use)
    : parameter_(parameter), use_(use) {
  wanted_ = parameter.defined() && parameter.requires_grad();
  if (!wanted_) return;
  const auto target = ask(parameter, use);
  sunk_ = target.grad.defined();
  accumulate_ = target.accumulate && sunk_;
  tensor_ = sunk_ ? target.grad
                  : torch::empty(parameter.sizes(), parameter.options().requires_grad(false));
}

float* Destination::data_to_add() {
  if (!accumulate_) tensor_.zero_();
  return data();
}

torch::Tensor Destination::done() {
  if (!sunk_) return tensor_;
  tell_ready(parameter_, use_);
  return {};
}

torch::Tensor sunk(const torch::Tensor& parameter, Use use) {
  if (!parameter.defined() || !wants_gradient({parameter})) return parameter;
  torch::Tensor alias = parameter.variable_data();
  record({alias}, {parameter}, "sunk", [parameter, use](Tensors&& gradients) -> Tensors {
    if (!gradients[0].defined()) return {torch::Tensor()};
    const auto target = ask(parameter, use);
    if (!target.grad.defined()) return {gradients[0]};
    if (target.accumulate) {
      target.grad.add_(gradients[0]);
    } else {
      target.grad.copy_(gradients[0]);
    }
    tell_ready(parameter, use);
    return {torch::Tensor()};
  });
  return alias;
}

}  // namespace tutti::nn
