// The operations of a model on typed values: what ops.h computes, with the communication that the
// operands' types on the tensor axis ask for (spread.h). On one device each is the operation of
// ops.h and nothing else.
//
//   operation   operands                                          result
//   embedded    weight Replicate                                  stream type
//               weight Shard(0): rows of the vocabulary           Partial -> stream type
//   add_norm    x, delta of one type, Replicate or Shard(0)       that type
//   linear      weight Replicate; x Replicate or Shard(0)         x's type
//               weight Shard(outputs); x -> Varying               Shard(1)
//               weight Shard(inputs); x Shard(1)                  Partial -> stream type, + bias
//   swiglu gelu anything but Partial                              x's type
//   attention   qkv Replicate or Shard(1): whole heads            x's type
//   head_loss   weight Replicate; x Replicate                     Replicate
//               weight Shard(0); x -> Varying                     Replicate
//
// Anything else is refused with a ConfigError that names both types and the parameter.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nn/dropout.h"
#include "nn/ops.h"
#include "nn/spread.h"

namespace tutti::nn {

struct Value {
  torch::Tensor tensor;   // this rank's part; [tokens, features]
  std::int64_t rows = 0;  // tokens when whole
  Type type;

  bool defined() const { return tensor.defined(); }
};

struct NormParameters {
  torch::Tensor weight, bias;  // bias undefined: RMS norm
};

Value embedded(const torch::Tensor& ids, const torch::Tensor& weight, Use use);
// What every rank holds whole, as a value of the stream's type.
Value to_stream(const torch::Tensor& whole, const torch::Tensor& at);
std::pair<Value, Value> add_norm(const Value& x, const Value& delta, const NormParameters& norm,
                                 double eps);
Value linear(const Value& x, const std::vector<Projection>& projections);
Value swiglu(const Value& gate_up);
Value gelu(const Value& x);
Value norm_heads(const Value& qkv, const Heads& heads, const torch::Tensor& query_weight,
                 const torch::Tensor& key_weight, double eps);
// RMS norm of all query heads together, and of all key heads (OLMoE): the weights' sizes say how
// wide. Not on cut heads.
Value norm_whole(const Value& qkv, const torch::Tensor& query_weight,
                 const torch::Tensor& key_weight, double eps);
// call.qkv is set from `qkv`.
Value attention(const Value& qkv, AttentionCall call);
// x * mask, of which `mask` [rows, features] is whole.
Value dropped(const Value& x, const torch::Tensor& mask);
torch::Tensor head_loss(const Value& x, const torch::Tensor& weight, const torch::Tensor& targets,
                        Use use);

// Cross-entropy whose vocabulary lies in slices on the ranks of the tensor axis (Shoeybi et al.,
// "Megatron-LM", 2019, section 3): `first` is the first id of this rank's rows, of which there may
// be none. Summed over tokens; the same on all ranks. Three numbers a token cross the wire.
torch::Tensor vocabulary_parallel_loss(const torch::Tensor& x, const torch::Tensor& weight,
                                       const torch::Tensor& targets, std::int64_t first, Use use);

}  // namespace tutti::nn
