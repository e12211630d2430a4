// Where one operation puts one parameter's gradient: the thread's sink, or a fresh tensor that goes
// back to autograd. Used by the backward passes of ops.h only.
#pragma once
#include <torch/torch.h>

#include "nn/grad_sink.h"
#include "nn/ops.h"

namespace tutti::nn {

class Destination {
 public:
  // `parameter` may be undefined or without gradient: wanted() is false then.
  Destination(const torch::Tensor& parameter, Use use);

  bool wanted() const { return wanted_; }
  // fp32, contiguous, the parameter's shape. If accumulate() is false its content is garbage.
  const torch::Tensor& tensor() const { return tensor_; }
  float* data() const { return tensor_.data_ptr<float>(); }
  float beta() const { return accumulate_ ? 1.0f : 0.0f; }
  bool accumulate() const { return accumulate_; }
  // Call when the gradient is written. Returns what the backward pass gives to autograd.
  torch::Tensor done();

  // For kernels that only add: zeroes the tensor unless it accumulates.
  float* data_to_add();

 private:
  torch::Tensor parameter_, tensor_;
  Use use_;
  bool wanted_ = false, accumulate_ = false, sunk_ = false;
};

// `parameter` for use in plain torch ops: its gradient, when it arrives, goes to the sink.
torch::Tensor sunk(const torch::Tensor& parameter, Use use = Use::only);

}  // namespace tutti::nn
