// Update rules over flat buffers: all parameters of a model lie in one buffer, each as a segment,
// so that an update is one pass over contiguous memory.
//
// Every rule is elementwise in its result (Muon: per matrix), computed with the same instructions
// at every position: the bits do not depend on how the buffer is cut or who updates which part.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace tutti::optim {

// Elements from `first` on, of a part of a parameter, lie from `place` on in the whole one.
struct Run {
  std::int64_t first = 0, place = 0;
};

// One parameter, or a run of its elements, inside the flat buffers. Gaps between segments are zero
// and stay zero.
struct Segment {
  std::string name;
  std::int64_t offset = 0, size = 0;  // elements; a whole parameter's offset is a multiple of 16
  std::vector<std::int64_t> shape;    // of the whole parameter
  bool input_first = false;           // a matrix [inputs, outputs], not [outputs, inputs]
  std::int64_t first = 0;             // which of the parameter's elements is the segment's first
  std::vector<Run> runs = {};  // of a part of a parameter, ascending from first = 0; empty: whole
};

struct NamedTensor {
  std::string name;         // "optimizer.exp_avg/<parameter>"
  torch::Tensor value;      // the segment's elements, flat, a view: writing restores the state
  std::size_t segment = 0;  // whose it is
};

// The ranks that share an update: costly parts of it are done once among them and handed on.
struct Peers {
  int rank = 0, size = 1;
  // All hold all: gives `values` of rank `root` to all.
  std::function<void(torch::Tensor values, int root)> broadcast = {};
  // Each holds consecutive elements of every parameter, in rank order: sizes[segment][rank] of
  // them. Then `exchange` sends send[r] elements of `in` to rank r and fills `out` with recv[r] of
  // each.
  std::vector<std::vector<std::int64_t>> sizes = {};
  std::function<void(torch::Tensor in, torch::Tensor out, std::vector<std::int64_t> send,
                     std::vector<std::int64_t> recv)>
      exchange = {};
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update of `master` with gradient * scale. Both are flat, of one floating type and size.
  // `step` counts from 1 (bias correction); `lr` is the scheduled learning rate. If a peer is lost
  // it throws, and neither `master` nor the state has changed.
  virtual void step(torch::Tensor& master, const torch::Tensor& gradient, std::int64_t step,
                    double lr, double scale) = 0;
  virtual std::vector<NamedTensor> state() = 0;
  // adamw's second moment stays as update `step` left it, so that later updates are linear in the
  // gradient (Tang et al., "1-bit Adam", 2021). The other rules have none.
  virtual void freeze_after(std::int64_t /*step*/) {}
};

// adamw  Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019, Algorithm 2 (as
//        torch.optim.AdamW): w -= lr*wd*w; w -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps).
// sgd    b = momentum*b + g; w -= lr * (nesterov ? g + momentum*b : b); decoupled decay as above.
// muon   Jordan et al., "Muon", 2024: nesterov momentum, orthogonalised by five Newton-Schulz
//        steps, for the hidden matrices, with lr * matrix_lr / recipe lr * sqrt(max(1, outputs
//        / inputs)); adamw for everything else. Each rank orthogonalises some of the matrices.
// Weight decay applies to segments of two and more dimensions.
//
// optimizer.state bf16: what state() holds is bf16, the arithmetic is the master's, and what was
// computed is rounded up or down by chance, in proportion (Zamirai et al., "Revisiting BFloat16
// training", 2020): to the nearest, 0.999 v + 0.001 g^2 would never leave v. The draw
// of an element is a function of (seed, the parameter's name, the element's place in it, step).
std::unique_ptr<Optimizer> make_optimizer(const recipe::Optimizer& recipe,
                                          std::vector<Segment> segments,
                                          const torch::Tensor& master_like, Peers peers = {},
                                          std::uint64_t seed = 1);

// The nearest semi-orthogonal matrix, roughly: singular values end within about [0.7, 1.2]. The
// quintic iteration X <- aX + (bA + cA^2)X, A = XX^T, (a, b, c) = (3.4445, -4.7750, 2.0315) of the
// same source, from X = G / |G|. In bf16, as there, where fp32 products may be rounded so
// (precision: fp32-fast).
torch::Tensor orthogonalise(const torch::Tensor& matrix);

// Whether muon updates it by orthogonalisation: a matrix that is neither embedding nor head.
bool is_hidden_matrix(const Segment& segment);

}  // namespace tutti::optim
