#include <cmath>

#include "base/error.h"
#include "nn/destination.h"
#include "nn/record.h"
#include "nn/value.h"

namespace tutti::nn {
namespace {

constexpr std::int64_t chunk_elements = std::int64_t{1} << 24;

torch::Tensor widened(const torch::Tensor& x) {
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
}

struct Chunk {
  torch::Tensor loss;      // summed
  torch::Tensor d_logits;  // of these ids; of the sum
};

// softmax and target of [rows, local ids] logits with the ids of the other ranks.
Chunk cross_entropy(torch::Tensor logits, const torch::Tensor& targets, std::int64_t first) {
  const std::int64_t rows = logits.size(0), ids = logits.size(1);
  const torch::Tensor valid = targets >= 0, local = targets - first;
  const torch::Tensor here = valid.logical_and(local >= 0).logical_and(local < ids);
  const torch::Tensor top =
      spread().max(ids > 0 ? logits.amax(1) : torch::full({rows}, -INFINITY, logits.options()));
  logits.sub_(top.unsqueeze(1));
  torch::Tensor sums = torch::zeros({2, rows}, logits.options());  // of exp; the target's logit
  const torch::Tensor column = local.clamp(0, std::max<std::int64_t>(0, ids - 1)).unsqueeze(1);
  if (ids > 0)
    sums[1].copy_(logits.gather(1, column).squeeze(1).mul_(here.to(logits.scalar_type())));
  logits.exp_();
  sums[0].copy_(logits.sum(1));
  sums = spread().sum(sums);
  const torch::Tensor weight = valid.to(logits.scalar_type());
  logits.mul_((weight / sums[0]).unsqueeze(1));
  if (ids > 0) logits.scatter_add_(1, column, here.to(logits.scalar_type()).neg().unsqueeze(1));
  return {((sums[0].log() - sums[1]) * weight).sum(), logits};
}

}  // namespace

torch::Tensor vocabulary_parallel_loss(const torch::Tensor& x, const torch::Tensor& weight,
                                       const torch::Tensor& targets, std::int64_t first, Use use) {
  const bool history = wants_gradient({x, weight});
  torch::NoGradGuard no_grad;
  const torch::Tensor wanted = targets.reshape({-1});
  const std::int64_t tokens = x.size(0);
  const std::int64_t chunk =
      std::clamp<std::int64_t>(chunk_elements / std::max<std::int64_t>(1, weight.size(0)), 1,
                               std::max<std::int64_t>(1, tokens));
  torch::Tensor loss = torch::zeros({}, widened(x).options().requires_grad(false));
  const torch::Tensor dx = torch::empty_like(x), d_weight = torch::zeros_like(weight);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - begin);
    const torch::Tensor part = x.narrow(0, begin, rows);
    const Chunk c = cross_entropy(widened(torch::linear(part, weight)).clone(),
                                  wanted.narrow(0, begin, rows), first);
    loss.add_(c.loss);
    const torch::Tensor d_logits = c.d_logits.to(x.scalar_type());
    dx.narrow(0, begin, rows).copy_(d_logits.matmul(weight));
    d_weight.addmm_(d_logits.t(), part);
  }
  if (history)
    record({loss}, {x, weight}, "vocabulary_parallel_loss",
           [dx, d_weight, weight, use](Tensors&& gradients) -> Tensors {
             Tensors results{dx * gradients[0].to(dx.scalar_type()), {}};
             Destination to(weight, use);
             if (!to.wanted()) return results;
             const torch::Tensor scaled = d_weight * gradients[0].to(d_weight.scalar_type());
             if (to.accumulate())
               to.tensor().add_(scaled);
             else
               to.tensor().copy_(scaled);
             results[1] = to.done();
             return results;
           });
  return loss;
}

}  // namespace tutti::nn
