// The tensor axis' part in one product of rows, forward and backward: rows that come from other
// ranks before it, or sums with theirs after it. Both go in runs of rows, so that one run is
// multiplied while another is on its way (Wang et al., "Overlap communication with dependent
// computation via decomposition in large deep learning models", ASPLOS 2023). This base is one
// rank's: all rows are here, in one run.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nn/ops.h"

namespace tutti::nn {

// [begin, begin + size)
struct Span {
  std::int64_t begin = 0, size = 0;
};

class RowExchange {
 public:
  using Use = std::function<void(Span rows, const torch::Tensor& x)>;
  using Make = std::function<void(Span rows, const torch::Tensor& out)>;

  // `rows`: of the product, on all ranks together.
  explicit RowExchange(std::int64_t rows) : rows_(rows) {}
  virtual ~RowExchange() = default;
  std::int64_t rows() const { return rows_; }

  // The rows of all ranks, of this rank's [rows, features]. `use` is told each row once, in runs
  // [size, features], as soon as they are there.
  virtual torch::Tensor gathered(const torch::Tensor& x, const Use& use);
  // The sum over the ranks of what `make` writes to `out` [size, features], which is garbage
  // before; each row is asked for once, in runs. Returns this rank's rows of it. `meanwhile` is
  // called once, while the last sums are under way.
  virtual torch::Tensor summed(std::int64_t features, const torch::TensorOptions& options,
                               const Make& make, const std::function<void()>& meanwhile);

 private:
  std::int64_t rows_;
};

// ops.h's linear() with weights that are cut over the ranks along their outputs (x is gathered, its
// gradient summed) or along their inputs (the result is summed, its gradient gathered).
enum class CutAlong { outputs, inputs };
torch::Tensor linear(const torch::Tensor& x, const std::vector<Projection>& projections,
                     std::shared_ptr<RowExchange> exchange, CutAlong cut);

}  // namespace tutti::nn
