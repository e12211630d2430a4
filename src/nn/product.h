// The matrix products of one linear() and of its backward pass, without a graph: by the project's
// kernels where they take the operands, else by torch. Used by ops.h's linear() and by that of
// row_exchange.h, which calls the first two on runs of rows.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "nn/ops.h"
#include "nn/record.h"

namespace tutti::nn {

class Product {
 public:
  Product(const torch::Tensor& x, std::vector<Projection> projections);

  bool fused() const { return fused_; }
  // As torch's operations are to see them: their gradients find the sink.
  const std::vector<Projection>& projections() const { return projections_; }
  std::int64_t width() const;  // of the result: the outputs side by side
  // What a graph node's edges go to: x, the weights, the biases.
  Tensors inputs(const torch::Tensor& x) const;

  // Into y [rows, width], of x [rows, in]; all contiguous.
  void forward(const torch::Tensor& x, const torch::Tensor& y) const;
  // Into dx [rows, in], of dy [rows, width].
  void input_gradient(const torch::Tensor& dy, const torch::Tensor& dx) const;
  // Of weights and biases, over all rows: what the node gives to these edges. Goes to the sink, or
  // waits if the thread's weight gradients do (deferred.h).
  Tensors weight_gradients(const torch::Tensor& x, const torch::Tensor& dy) const;

 private:
  void add_biases(const torch::Tensor& y) const;
  Tensors gradients_now(const torch::Tensor& x, const torch::Tensor& dy) const;
  void plain_input_gradient(const torch::Tensor& dy, const torch::Tensor& dx) const;
  Tensors plain_weight_gradients(const torch::Tensor& x, const torch::Tensor& dy) const;

  std::vector<Projection> projections_;
  bool fused_;
};

}  // namespace tutti::nn
