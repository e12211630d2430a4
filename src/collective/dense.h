// What c10d hands over, as communicators take it. Of CommBackend's sources only.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "collective/dtypes.h"
#include "comm/communicator.h"

namespace tutti::collective {

// A tensor, or a contiguous copy of it that give_back() writes home.
class Dense {
 public:
  explicit Dense(const at::Tensor& tensor) : asked_(tensor), data_(tensor.contiguous()) {
    TORCH_CHECK(tensor.device().is_cpu(), "tutti's collectives take tensors on the CPU, not on ",
                tensor.device());
    type();  // refuses what no communicator carries, before anything starts
  }
  void* data() const { return data_.data_ptr(); }
  std::size_t count() const { return static_cast<std::size_t>(data_.numel()); }
  std::size_t bytes() const { return data_.nbytes(); }
  DType type() const { return to_dtype(data_.scalar_type()); }
  void give_back() const {
    if (!data_.is_same(asked_)) asked_.copy_(data_);
  }

 private:
  at::Tensor asked_, data_;
};

inline std::vector<Dense> dense(const std::vector<at::Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

inline const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "one tensor a rank, not ", tensors.size());
  return tensors[0];
}

inline comm::Reduce to_reduce(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return comm::Reduce::sum;
    case c10d::ReduceOp::AVG:
      return comm::Reduce::average;
    case c10d::ReduceOp::PRODUCT:
      return comm::Reduce::product;
    case c10d::ReduceOp::MAX:
      return comm::Reduce::max;
    case c10d::ReduceOp::MIN:
      return comm::Reduce::min;
    default:
      TORCH_CHECK(false, "tutti reduces by SUM, AVG, PRODUCT, MAX and MIN only");
  }
}

inline void check_sizes(const at::Tensor& whole, const at::Tensor& part, int size) {
  TORCH_CHECK(whole.numel() == part.numel() * size, "expected ", size, " times ", part.numel(),
              " elements, not ", whole.numel());
  TORCH_CHECK(whole.scalar_type() == part.scalar_type(),
              "tensors of two types: ", whole.scalar_type(), " and ", part.scalar_type());
}

}  // namespace tutti::collective
