// The state that a rank holds of cut and sharded parameters, as boxes of global tensors: what a
// checkpoint stores and any other layout reads.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "parallel/cut.h"
#include "parallel/engine.h"

namespace tutti::parallel {

class LocalState {
 public:
  // `values` are elements [first, first + values.numel()) of the rank's tensor under `cut`, in
  // row-major order; writing into what tensors() says changes them (after write_back()).
  void add(const std::string& name, const Cut& cut, std::int64_t first, const torch::Tensor& values,
           bool owned);
  std::vector<StateTensor>& tensors() { return tensors_; }
  // Pieces that do not lie side by side in memory were handed out as copies: copies them back.
  void write_back();

 private:
  void add_run(const std::string& name, const Cut& cut, const Box& run, const torch::Tensor& values,
               bool owned);
  void add_piece(const std::string& name, const Cut& cut, Box box, torch::Tensor values,
                 bool owned);

  std::vector<StateTensor> tensors_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies_;  // where it lies, the copy
};

}  // namespace tutti::parallel
