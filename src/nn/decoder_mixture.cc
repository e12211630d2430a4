// What a Decoder has besides if its layers are mixtures of experts: parameters, counts, balance.
#include "base/error.h"
#include "nn/decoder.h"
#include "nn/moe.h"

namespace tutti::nn {

std::vector<Projection> Decoder::add_up(const std::string& mlp, std::int64_t width) {
  const auto up = add_neighbours({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, {width, width},
                                 config_.embed);
  return {{up[0], {}}, {up[1], {}}};
}

MixtureParameters Decoder::add_mixture(const std::string& mlp) {
  const recipe::Moe& moe = config_.moe;
  const std::int64_t embed = config_.embed, width = moe.expert_mlp;
  MixtureParameters p;
  p.router = add(mlp + "router.weight", {moe.experts, embed});
  p.gate = add(mlp + "experts.gate_proj.weight", {moe.experts, width, embed});
  p.up = add(mlp + "experts.up_proj.weight", {moe.experts, width, embed});
  p.down = add(mlp + "experts.down_proj.weight", {moe.experts, embed, width});
  if (moe.shared_experts > 0) {
    const std::string shared = mlp + "shared_expert.";
    p.shared_up = add_up(shared, moe.shared_experts * width);
    p.shared_down.weight = add(shared + "down_proj.weight", {embed, moe.shared_experts * width});
    if (moe.shared_gate) p.shared_gate = add(mlp + "shared_expert_gate.weight", {1, embed});
  }
  if (moe.router == "sigmoid" || moe.balance_bias_rate > 0)
    p.bias = add_buffer(mlp + "router.bias", torch::zeros({moe.experts}));
  if (moe.aux_loss > 0 && moe.aux_scope == "global")
    p.load = add_buffer(mlp + "router.load",
                        torch::full({moe.experts}, static_cast<double>(moe.experts_per_token) /
                                                       static_cast<double>(moe.experts)));
  return p;
}

void Decoder::count_tokens(const torch::Tensor& targets, Pass& pass) const {
  pass.tokens = {(targets >= 0).flatten(), {}, pass.heads.batch * pass.length, true};
  if (pass.positions.defined() && config_.moe.capacity_factor > 0)
    pass.tokens.places = (torch::arange(pass.heads.batch, torch::kLong).unsqueeze(1) * pass.length +
                          pass.positions.to(torch::kCPU))
                             .flatten();
}

void Decoder::keep_counts(std::size_t index, const MixtureTrace& trace) {
  if (!trace.counts.defined()) return;
  torch::NoGradGuard no_grad;
  routed_[static_cast<std::int64_t>(index) - config_.moe.dense_layers].add_(
      trace.counts.to(routed_.device()));
}

torch::Tensor Decoder::take_routed_counts() {
  if (!routed_.defined()) return {};
  return std::exchange(routed_, torch::zeros_like(routed_));
}

void Decoder::update_balance(const torch::Tensor& counts) {
  if (!routed_.defined()) return;
  TUTTI_ASSERT(counts.sizes() == routed_.sizes());
  torch::NoGradGuard no_grad;
  const recipe::Moe& moe = config_.moe;
  for (std::int64_t i = 0; i < counts.size(0); ++i) {
    MixtureParameters& p = *layers_[static_cast<std::size_t>(i + moe.dense_layers)].mixture;
    const torch::Tensor layer = counts[i].to(torch::kDouble);
    if (p.bias.defined() && moe.balance_bias_rate > 0)
      update_bias(p.bias, counts[i].to(p.bias.device()), moe.balance_bias_rate);
    const double total = layer.sum().item<double>();
    if (p.load.defined() && total > 0)
      p.load.copy_(layer * (static_cast<double>(moe.experts_per_token) / total));
  }
}

}  // namespace tutti::nn
