// Where weight gradients go. By default a backward pass returns them to autograd, which adds them
// to Tensor::grad(). A trainer that owns flat gradient buffers sets a GradSink for the thread that
// calls backward(): the fused operations of ops.h then write each weight's gradient straight to its
// place (a GEMM with beta 0 or 1, no copy) and say when it is complete, so that reduction can
// start.
//
// While a sink is set and accepts a parameter, autograd sees no gradient for it: Tensor::grad()
// stays as it is and post-accumulate hooks do not fire; `ready` is the hook. It works the same in
// recomputed blocks. Not thread-safe: one sink a thread, called from the thread of backward().
#pragma once
#include <torch/torch.h>

namespace tutti::nn {

class GradSink {
 public:
  struct Target {
    torch::Tensor grad;       // the parameter's shape, contiguous, fp32 or the parameter's dtype;
                              // undefined: leave this parameter to autograd
    bool accumulate = false;  // add to what is there; false: overwrite (content may be garbage)
  };
  virtual ~GradSink() = default;

  // Where the gradient of `parameter` (the registered leaf itself: compare unsafeGetTensorImpl())
  // belongs in this backward pass. Asked at least once a backward for each use of the parameter;
  // a tied parameter has two uses, of which the second always adds, whatever `accumulate` says.
  virtual Target target(const torch::Tensor& parameter) = 0;

  // The gradient of `parameter` is whole for this backward pass. Once a parameter and pass, in
  // backward order. May start communication; must not block for long.
  virtual void ready(const torch::Tensor& parameter) = 0;
};

// The calling thread's sink, or null.
GradSink* grad_sink();

// Sets the calling thread's sink for its lifetime.
class GradSinkScope {
 public:
  explicit GradSinkScope(GradSink* sink);
  ~GradSinkScope();
  GradSinkScope(const GradSinkScope&) = delete;
  GradSinkScope& operator=(const GradSinkScope&) = delete;

 private:
  GradSink* outer_;
};

}  // namespace tutti::nn
