// The feed-forward layer that is a mixture of experts, on typed values: moe.h's stages with the
// communication that the weights' places ask for.
//
//   experts                                     what happens
//   whole, all here                             rows of x's type go through them
//   on several ranks (ExpertSpread::spreads)    x -> Shard(0); rows are sent and brought back
//   cut on the tensor axis: Shard(1) gate, up   x -> Varying; every rank has a slice of each
//     and Shard(2) down; or all Shard(0)        expert, or some experts -> Partial -> stream type
//
// The shared experts are an ordinary layer. The router is whole on every rank.
#pragma once
#include <torch/torch.h>

#include <string>
#include <vector>

#include "nn/ops.h"
#include "nn/value.h"
#include "recipe/recipe.h"

namespace tutti::nn {

struct MixtureParameters {
  torch::Tensor router;               // [experts, embed]
  torch::Tensor gate, up, down;       // [experts, mlp, embed] twice, [experts, embed, mlp]
  std::vector<Projection> shared_up;  // empty: no shared experts
  Projection shared_down;
  torch::Tensor shared_gate;  // [1, embed] or undefined
  // Buffers, fp32 [experts], or undefined. They change once a step, by update_balance.
  torch::Tensor bias;  // of the choice
  torch::Tensor load;  // choices a token of the last global batch; sums to experts_per_token
};

// The tokens of a pass, as they are here before a cut along the tensor axis.
struct MixtureTokens {
  torch::Tensor counted;   // bool [tokens]: those with a target; undefined: a pass without a loss
  torch::Tensor places;    // int64 [tokens]: in the whole micro-batch; undefined: all, in order
  std::int64_t whole = 0;  // of the micro-batch, all ranks'
  bool limited = false;    // capacity_factor counts: in training
};

// What one pass through a layer leaves behind. Give the same one to a recomputed pass: it goes the
// way of the first and is not counted again.
struct MixtureTrace {
  torch::Tensor ids;     // the decision
  torch::Tensor loss;    // the router's losses, Replicate; undefined: none
  torch::Tensor counts;  // int64 [experts]: choices of the micro-batch's counted tokens, all ranks'
};

Value mixture(const Value& x, const MixtureParameters& p, const recipe::Moe& moe,
              const MixtureTokens& tokens, MixtureTrace& trace);

}  // namespace tutti::nn
