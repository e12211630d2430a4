#include <ATen/Parallel.h>

#include "base/error.h"
#include "nn/destination.h"
#include "nn/gemm.h"
#include "nn/kernels.h"
#include "nn/ops.h"
#include "nn/plain.h"
#include "nn/record.h"

namespace tutti::nn {
namespace {

constexpr std::int64_t chunk_elements = std::int64_t{1} << 24;  // 64 MiB of logits

struct HeadLoss {
  torch::Tensor x, weight, targets;
  torch::Tensor dx, d_weight;  // of the sum; undefined without history
  std::vector<float> losses;   // a token

  std::int64_t vocab() const { return weight.size(0); }
  std::int64_t embed() const { return weight.size(1); }
};

// Logits of tokens [begin, begin + rows) -> losses, and logits become their own gradient.
void losses_of(HeadLoss& h, std::int64_t begin, std::int64_t rows, float* logits) {
  const auto* target = h.targets.data_ptr<std::int64_t>() + begin;
  at::parallel_for(0, rows, 16, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t r = first; r < end; ++r) {
      float* row = logits + r * h.vocab();
      if (target[r] >= 0) {
        h.losses[begin + r] = kernels().cross_entropy(row, target[r], h.vocab());
      } else {
        std::fill_n(row, h.vocab(), 0.0f);
      }
    }
  });
}

void run(HeadLoss& h) {
  const std::int64_t tokens = h.x.size(0), vocab = h.vocab(), embed = h.embed();
  if (tokens == 0 && h.d_weight.defined()) h.d_weight.zero_();  // no chunk below writes it
  const std::int64_t chunk = std::max<std::int64_t>(1, std::min(tokens, chunk_elements / vocab));
  torch::Tensor logits = torch::empty({chunk, vocab}, h.x.options());
  const float* weight = h.weight.data_ptr<float>();
  float* scores = logits.data_ptr<float>();
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - begin);
    const float* x = h.x.data_ptr<float>() + begin * embed;
    gemm(rows, vocab, embed, {x, embed}, {weight, embed, true}, 0, scores, vocab);
    losses_of(h, begin, rows, scores);
    if (h.dx.defined())
      gemm(rows, embed, vocab, {scores, vocab}, {weight, embed}, 0,
           h.dx.data_ptr<float>() + begin * embed, embed);
    if (h.d_weight.defined())
      gemm(vocab, embed, rows, {scores, vocab, true}, {x, embed}, begin == 0 ? 0.0f : 1.0f,
           h.d_weight.data_ptr<float>(), embed);
  }
}

}  // namespace

torch::Tensor head_loss(const torch::Tensor& x, const torch::Tensor& weight,
                        const torch::Tensor& targets, Use use) {
  if (!fused(x) || !fused(weight)) return plain::head_loss(x, sunk(weight, use), targets);
  const bool history = wants_gradient({x, weight});
  HeadLoss h{x.detach(), weight.detach(), targets.reshape({-1}).contiguous(), {}, {}, {}};
  if (history && x.requires_grad()) h.dx = torch::empty_like(h.x);
  if (history && weight.requires_grad()) h.d_weight = torch::empty_like(h.weight);
  torch::NoGradGuard no_grad;
  h.losses.assign(static_cast<std::size_t>(h.x.size(0)), 0.0f);
  run(h);
  double sum = 0;
  for (float loss : h.losses) sum += loss;
  torch::Tensor out = torch::scalar_tensor(sum, x.options().requires_grad(false));
  if (history)
    record({out}, {x, weight}, "head_loss",
           [dx = h.dx, d_weight = h.d_weight, weight, use](Tensors&& gradients) -> Tensors {
             const auto scale = gradients[0].item<float>();
             Tensors results(2);
             if (d_weight.defined()) {
               Destination to(weight, use);
               if (to.accumulate())
                 to.tensor().add_(d_weight, scale);
               else
                 at::mul_out(const_cast<torch::Tensor&>(to.tensor()), d_weight,
                             torch::scalar_tensor(scale));
               results[1] = to.done();
             }
             if (dx.defined()) results[0] = dx * scale;
             return results;
           });
  return out;
}

}  // namespace tutti::nn
