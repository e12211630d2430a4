#include "nn/plain.h"

#include <cmath>

namespace tutti::nn::plain {
namespace F = torch::nn::functional;
namespace {

torch::Tensor widened(const torch::Tensor& x) {
  const auto type = x.scalar_type();
  return type == torch::kHalf || type == torch::kBFloat16 ? x.to(torch::kFloat) : x;
}

}  // namespace

torch::Tensor embedding(const torch::Tensor& ids, const torch::Tensor& weight) {
  return torch::embedding(weight, ids.reshape({-1}));
}

torch::Tensor add_norm(const torch::Tensor& sum, const torch::Tensor& weight,
                       const torch::Tensor& bias, double eps) {
  const torch::Tensor x = widened(sum);
  if (bias.defined())
    return torch::layer_norm(x, {x.size(-1)}, widened(weight), widened(bias), eps)
        .to(sum.scalar_type());
  const torch::Tensor unit = x * torch::rsqrt(x.square().mean(-1, true) + eps);
  return weight * unit.to(sum.scalar_type());
}

torch::Tensor linear(const torch::Tensor& x, const std::vector<Projection>& projections) {
  std::vector<torch::Tensor> parts;
  for (const auto& p : projections)
    parts.push_back(torch::linear(x, p.transposed ? p.weight.t() : p.weight, p.bias));
  return parts.size() == 1 ? parts[0] : torch::cat(parts, -1);
}

torch::Tensor swiglu(const torch::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, -1);
  return torch::silu(parts[0]) * parts[1];
}

torch::Tensor gelu(const torch::Tensor& x) { return torch::gelu(x, "tanh"); }

torch::Tensor norm_heads(const torch::Tensor& qkv, const Heads& heads,
                         const torch::Tensor& query_weight, const torch::Tensor& key_weight,
                         double eps) {
  const auto parts = qkv.split_with_sizes(
      {heads.heads * heads.dim, heads.kv_heads * heads.dim, heads.kv_heads * heads.dim}, -1);
  const auto norm = [&](const torch::Tensor& x, const torch::Tensor& weight) {
    return add_norm(x.reshape({x.size(0), x.size(1) / heads.dim, heads.dim}), weight, {}, eps)
        .reshape(x.sizes());
  };
  return torch::cat({norm(parts[0], query_weight), norm(parts[1], key_weight), parts[2]}, -1);
}

QueryKeyValue split_and_rotate(const torch::Tensor& qkv, const Heads& heads, const Rope& rope) {
  const auto parts = qkv.view({heads.batch, heads.sequence, qkv.size(-1) / heads.dim, heads.dim})
                         .split_with_sizes({heads.heads, heads.kv_heads, heads.kv_heads}, 2);
  const auto rotate = [&](const torch::Tensor& x) {
    if (!rope.cosine.defined()) return x;
    const auto halves = x.chunk(2, -1);
    const auto cosine = rope.cosine.to(x.scalar_type()).unsqueeze(1);
    const auto sine = rope.sine.to(x.scalar_type()).unsqueeze(1);
    return torch::cat(
        {halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
  };
  return {rotate(parts[0]).transpose(1, 2), rotate(parts[1]).transpose(1, 2),
          parts[2].transpose(1, 2)};
}

torch::Tensor seen(const Heads& heads, std::int64_t past, const torch::Tensor& first_key,
                   torch::Device device) {
  const auto options = torch::TensorOptions(torch::kLong).device(device);
  const auto keys = torch::arange(past + heads.sequence, options);
  const auto queries = torch::arange(past, past + heads.sequence, options).unsqueeze(1);
  auto mask = (keys <= queries).view({1, 1, heads.sequence, past + heads.sequence});
  if (first_key.defined()) mask = mask & (keys >= first_key.view({heads.batch, 1, -1, 1}));
  return mask;
}

torch::Tensor attend(const QueryKeyValue& qkv, const Heads& heads, const torch::Tensor& mask,
                     const torch::Tensor& keep) {
  const std::int64_t group = heads.heads / heads.kv_heads;
  const auto key = group == 1 ? qkv.key : qkv.key.repeat_interleave(group, 1);
  const auto value = group == 1 ? qkv.value : qkv.value.repeat_interleave(group, 1);
  auto scores = torch::matmul(qkv.query, key.transpose(2, 3)) / std::sqrt(double(heads.dim));
  scores = widened(scores).masked_fill(mask.logical_not(), -INFINITY);
  auto probabilities = torch::softmax(scores, -1).to(value.scalar_type());
  if (keep.defined()) probabilities = probabilities * keep.to(value.scalar_type());
  return torch::matmul(probabilities, value)
      .transpose(1, 2)
      .reshape({heads.tokens(), heads.heads * heads.dim});
}

torch::Tensor attention(const torch::Tensor& qkv, const Heads& heads, const Rope& rope,
                        const torch::Tensor& first_key) {
  return attend(split_and_rotate(qkv, heads, rope), heads, seen(heads, 0, first_key, qkv.device()));
}

torch::Tensor head_loss(const torch::Tensor& x, const torch::Tensor& weight,
                        const torch::Tensor& targets) {
  const auto logits = widened(torch::linear(x, weight));
  const auto wanted = targets.reshape({-1});
  return torch::nll_loss(torch::log_softmax(logits, -1), wanted.masked_fill(wanted < 0, -100), {},
                         at::Reduction::Sum);
}

}  // namespace tutti::nn::plain
