// The operations of the models, each with its own backward pass. CPU fp32 tensors run the fused
// kernels (kernels.h, gemm.h); everything else, and everything while PlainOps is alive, runs the
// composition of torch ops in plain.h, which is also what the tests compare with.
//
// Activations are [tokens, features], contiguous, tokens = batch x sequence, row-major. All results
// are bitwise reproducible for a fixed number of intra-op threads. Weight gradients go to the
// thread's GradSink when it accepts the parameter (grad_sink.h).
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::nn {

// Which of the uses of a parameter an operation is, in the order of the backward pass.
enum class Use { only, first, second };

// While alive, the calling thread's operations are plain torch ops.
class PlainOps {
 public:
  explicit PlainOps(bool on = true);
  ~PlainOps();
  PlainOps(const PlainOps&) = delete;
  PlainOps& operator=(const PlainOps&) = delete;

 private:
  bool outer_;
};
bool fused(const torch::Tensor& x);  // whether the kernels take it

// Rows of `weight` [vocab, embed] by `ids` (int64, any shape) -> [ids.numel(), embed].
torch::Tensor embedding(const torch::Tensor& ids, const torch::Tensor& weight, Use use);

// One row per position 0 <= offset + t < context, repeated for each sample of the batch.
torch::Tensor position_embedding(const torch::Tensor& weight, std::int64_t batch,
                                 std::int64_t sequence, std::int64_t offset);

// {s, norm(s)} with s = x + add; s = x if `add` is undefined. RMS norm if `bias` is undefined,
// layer norm otherwise.
std::pair<torch::Tensor, torch::Tensor> add_norm(const torch::Tensor& x, const torch::Tensor& add,
                                                 const torch::Tensor& weight,
                                                 const torch::Tensor& bias, double eps);

struct Projection {
  torch::Tensor weight;  // [out, in], or [in, out] if `transposed` (GPT-2's Conv1D)
  torch::Tensor bias;    // [out] or undefined
  bool transposed = false;
};

// [tokens, in] -> [tokens, sum of out]: the outputs side by side. Weights that are neighbours in
// memory (in this order) run as one matrix product, and so do their gradients.
torch::Tensor linear(const torch::Tensor& x, const std::vector<Projection>& projections);

// [tokens, gate | up] -> silu(gate) * up. CONSUMES gate_up in the backward pass (unless it is a
// leaf or the graph is kept): nothing else may need its values.
torch::Tensor swiglu(const torch::Tensor& gate_up);
// GPT-2's tanh form.
torch::Tensor gelu(const torch::Tensor& x);

struct Heads {
  std::int64_t batch, sequence, heads, kv_heads, dim;
  std::int64_t tokens() const { return batch * sequence; }
  std::int64_t row() const { return (heads + 2 * kv_heads) * dim; }  // features of a qkv row
};

// RMS norm of each query and key head of [tokens, q | k | v]; v passes through (Qwen 3).
torch::Tensor norm_heads(const torch::Tensor& qkv, const Heads& heads,
                         const torch::Tensor& query_weight, const torch::Tensor& key_weight,
                         double eps);

struct Rope {
  torch::Tensor cosine, sine;  // fp32 [sequence, dim / 2]; undefined: no rotation
};

// Causal attention with rotary positions: [tokens, q | k | v] -> [tokens, heads * dim].
// CONSUMES qkv: on the fused path q and k are rotated in place, so nothing else may read it.
// `first_key` int32 [batch, sequence] or undefined: the first position a query sees.
torch::Tensor attention(const torch::Tensor& qkv, const Heads& heads, const Rope& rope,
                        const torch::Tensor& first_key);

// Summed cross-entropy (fp32 scalar, nats) of softmax(x weight^T) against `targets` (int64
// [tokens]; below 0: none). Logits exist for a chunk of tokens at a time; gradients are made in the
// forward pass, so that no logits are kept.
torch::Tensor head_loss(const torch::Tensor& x, const torch::Tensor& weight,
                        const torch::Tensor& targets, Use use);

// documents int32 [batch, sequence] -> first_key: where each token's document begins.
torch::Tensor first_keys(const torch::Tensor& documents);

}  // namespace tutti::nn
