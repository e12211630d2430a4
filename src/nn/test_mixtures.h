// For tests: a small model of every mixture of experts that transformers has and we can be.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "nn/model.h"

namespace tutti::nn::testing {

inline recipe::Model small_mixture() {
  recipe::Model m;
  m.vocab = 31, m.layers = 3, m.embed = 16, m.heads = 4, m.kv_heads = 2, m.mlp = 24;
  m.moe.experts = 6, m.moe.experts_per_token = 2, m.moe.expert_mlp = 10;
  return m;
}

// Architecture (without "ForCausalLM") -> the model, resolved for a context of 24.
inline std::vector<std::pair<std::string, recipe::Model>> mixtures() {
  recipe::Model mixtral = small_mixture(), olmoe = small_mixture(), qwen2 = small_mixture(),
                qwen3 = small_mixture(), dots = small_mixture();
  mixtral.moe.expert_mlp = 24;
  olmoe.qk_norm = olmoe.qk_norm_whole = true;
  olmoe.moe.normalise = false, olmoe.moe.expert_mlp = 24;
  qwen2.qkv_bias = true, qwen2.moe.normalise = false;
  qwen2.moe.shared_experts = 2, qwen2.moe.shared_gate = true;
  qwen3.qk_norm = true, qwen3.head_dim = 6, qwen3.moe.dense_layers = 1;
  dots.qk_norm = true, dots.moe.router = "sigmoid", dots.moe.router_scale = 2.5;
  dots.moe.groups = 3, dots.moe.groups_per_token = 2, dots.moe.dense_layers = 1;
  dots.moe.shared_experts = 1, dots.moe.balance_bias_rate = 0.01;
  std::vector<std::pair<std::string, recipe::Model>> all{{"Mixtral", mixtral},
                                                         {"Olmoe", olmoe},
                                                         {"Qwen2Moe", qwen2},
                                                         {"Qwen3Moe", qwen3},
                                                         {"Dots1", dots}};
  for (auto& [name, model] : all) model = resolve(model, 24);
  return all;
}

}  // namespace tutti::nn::testing
