// The slow, obvious twins of ops.h, composed of torch ops with autograd's own backward passes: what
// runs off the fused path (other devices, dtypes) and what the tests compare with. Half types
// compute norms, softmax and losses in fp32. Contracts as in ops.h; nothing consumes its input.
#pragma once
#include "nn/ops.h"

namespace tutti::nn::plain {

torch::Tensor embedding(const torch::Tensor& ids, const torch::Tensor& weight);
torch::Tensor add_norm(const torch::Tensor& sum, const torch::Tensor& weight,
                       const torch::Tensor& bias, double eps);
torch::Tensor linear(const torch::Tensor& x, const std::vector<Projection>& projections);
torch::Tensor swiglu(const torch::Tensor& gate_up);
torch::Tensor gelu(const torch::Tensor& x);
torch::Tensor norm_heads(const torch::Tensor& qkv, const Heads& heads,
                         const torch::Tensor& query_weight, const torch::Tensor& key_weight,
                         double eps);

struct QueryKeyValue {
  torch::Tensor query, key, value;  // [batch, heads or kv_heads, sequence, dim]
};
// Splits and rotates; the half-split ("rotate_half") layout.
QueryKeyValue split_and_rotate(const torch::Tensor& qkv, const Heads& heads, const Rope& rope);

// bool [1 or batch, 1, sequence, keys]: what each query may see. `past` keys precede the first
// query.
torch::Tensor seen(const Heads& heads, std::int64_t past, const torch::Tensor& first_key,
                   torch::Device device);

// softmax(q k' / sqrt(dim)) v with explicit scores; `keep` (or undefined) multiplies the
// probabilities (attention dropout). -> [tokens, heads * dim].
torch::Tensor attend(const QueryKeyValue& qkv, const Heads& heads, const torch::Tensor& mask,
                     const torch::Tensor& keep = {});
torch::Tensor attention(const torch::Tensor& qkv, const Heads& heads, const Rope& rope,
                        const torch::Tensor& first_key);
torch::Tensor head_loss(const torch::Tensor& x, const torch::Tensor& weight,
                        const torch::Tensor& targets);

}  // namespace tutti::nn::plain
