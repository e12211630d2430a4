// A mixture of experts, as stages that stand alone (Shazeer et al., "Outrageously large neural
// networks", 2017; Fedus et al., "Switch transformers", 2021; Gale et al., "MegaBlocks", 2022):
//
//   route      scores of a token -> the experts that it goes to, and their weights
//   sort_slots (token, choice) slots -> rows sorted by expert, each expert's rows side by side
//   dispatch   tokens -> those rows
//   experts_mlp  each expert's SwiGLU over its own rows, one matrix product an expert
//   combine    rows -> tokens: the weighted sum of a token's rows
//
// Expert parallelism puts an exchange of rows between dispatch and experts_mlp and another before
// combine (expert_spread.h). On CPU in fp32 the fused loops run, else torch ops; bitwise
// reproducible for a fixed number of intra-op threads: no sum depends on which thread ran.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "nn/spread.h"
#include "recipe/recipe.h"

namespace tutti::nn {

struct Routing {
  torch::Tensor logits;         // [tokens, experts], fp32 or fp64
  torch::Tensor probabilities;  // the same through softmax or sigmoid
  torch::Tensor ids;            // int64 [tokens, experts_per_token]: best first
  torch::Tensor weights;        // [tokens, experts_per_token], the scores' dtype
};

// `scores` [tokens, experts]. All but ids is differentiable; ids are a decision and have no
// gradient. `bias` (fp32 [experts] or undefined) is added to the probabilities for the choice only
// (DeepSeek-AI, "DeepSeek-V3", 2024, section 2.1.2); with groups, a token chooses among those
// groups whose two best experts have the largest sums. `ids`, if defined, are the decision: a
// recomputed pass goes where the first one went.
Routing route(const torch::Tensor& scores, const torch::Tensor& bias, const recipe::Moe& moe,
              const torch::Tensor& ids = {});

struct SlotOrder {
  torch::Tensor slots;               // int64 [rows]: token x experts_per_token + choice
  torch::Tensor places;              // int64 [tokens, experts_per_token]: its row; -1: dropped
  std::vector<std::int64_t> counts;  // rows of each expert
};

// Of each slot: how many earlier slots, in the order of `places` (int64 [tokens], all different; a
// token's choices are in their order), go to the same expert. int64, ids' shape; on the CPU.
torch::Tensor earlier_slots(const torch::Tensor& ids, const torch::Tensor& places,
                            std::int64_t experts);

// Sorts by expert, then by token. `capacity` above 0: an expert takes its first `capacity` slots
// in the order of the micro-batch; the later ones are dropped, their weight in combine is 0.
// `earlier` is earlier_slots of the micro-batch's tokens of which these are some; undefined: all.
SlotOrder sort_slots(const torch::Tensor& ids, std::int64_t experts, std::int64_t capacity = 0,
                     const torch::Tensor& earlier = {});

// ceil(factor x tokens x experts_per_token / experts), at least 1; 0 if factor is 0.
std::int64_t capacity_of(const recipe::Moe& moe, std::int64_t tokens);

torch::Tensor dispatch(const torch::Tensor& x, const SlotOrder& order);

// rows [sum of counts, embed], sorted by expert; gate, up [experts, mlp, embed]; down [experts,
// embed, mlp]; counts as many as experts. An expert without rows has gradient zero.
torch::Tensor experts_mlp(const torch::Tensor& rows, const std::vector<std::int64_t>& counts,
                          const torch::Tensor& gate, const torch::Tensor& up,
                          const torch::Tensor& down);

torch::Tensor combine(const torch::Tensor& rows, const torch::Tensor& weights,
                      const SlotOrder& order);

// How often each expert was chosen by the tokens of which `counted` (bool [tokens]) is true: int64
// [experts], drops not taken off.
torch::Tensor choices(const torch::Tensor& ids, const torch::Tensor& counted, std::int64_t experts);

// The losses of a router, each a sum over the tokens of which `counted` is true, so that the one
// loss rule holds (docs/numerics.md): with f [experts] the choices a token, whose sum is k,
//   aux_loss x (experts / k) sum_t sum_e f_e p_te    (Switch, equation 4; 1 a token if balanced)
//   z_loss x sum_t logsumexp(logits_t)^2             (Zoph et al., "ST-MoE", 2022, equation 5)
// p are the probabilities; a sigmoid's are divided by their sum. f is a constant. Scalar.
torch::Tensor router_losses(const Routing& routing, const torch::Tensor& f,
                            const torch::Tensor& counted, const recipe::Moe& moe);

// DeepSeek-V3's balance without a loss, once an optimizer step: bias += rate x sign(mean - count).
void update_bias(torch::Tensor& bias, const torch::Tensor& counts, double rate);

}  // namespace tutti::nn
