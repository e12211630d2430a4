// Who goes where: the decisions and losses of moe.h.
#include <cmath>
#include <utility>

#include "base/error.h"
#include "nn/moe.h"

namespace tutti::nn {
namespace {

torch::Tensor widened(const torch::Tensor& x) {
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
}

// Experts outside a token's best groups cannot be chosen.
torch::Tensor within_groups(const torch::Tensor& choice, const recipe::Moe& moe) {
  const std::int64_t tokens = choice.size(0);
  const auto grouped = choice.view({tokens, moe.groups, moe.experts / moe.groups});
  const auto strength = std::get<0>(grouped.topk(2, -1)).sum(-1);
  const auto best = std::get<1>(strength.topk(moe.groups_per_token, -1));
  const auto closed = torch::ones({tokens, moe.groups, 1}, choice.options().dtype(torch::kBool))
                          .scatter(1, best.unsqueeze(-1), false);
  return grouped.masked_fill(closed, -INFINITY).view({tokens, moe.experts});
}

torch::Tensor decide(const torch::Tensor& probabilities, const torch::Tensor& bias,
                     const recipe::Moe& moe) {
  torch::Tensor choice = probabilities.detach();
  if (bias.defined()) choice = choice + bias;
  if (moe.groups > 1) choice = within_groups(choice, moe);
  return std::get<1>(choice.topk(moe.experts_per_token, -1));
}

}  // namespace

Routing route(const torch::Tensor& scores, const torch::Tensor& bias, const recipe::Moe& moe,
              const torch::Tensor& ids) {
  TUTTI_ASSERT(scores.dim() == 2 && scores.size(1) == moe.experts);
  Routing r;
  r.logits = widened(scores);
  r.probabilities =
      moe.router == "sigmoid" ? torch::sigmoid(r.logits) : torch::softmax(r.logits, -1);
  r.ids = ids.defined() ? ids : decide(r.probabilities, bias, moe);
  torch::Tensor weights = r.probabilities.gather(1, r.ids);
  if (moe.normalise) weights = weights / (weights.sum(-1, true) + 1e-20);
  if (moe.router_scale != 1) weights = weights * moe.router_scale;
  r.weights = weights.to(scores.scalar_type());
  return r;
}

std::int64_t capacity_of(const recipe::Moe& moe, std::int64_t tokens) {
  if (moe.capacity_factor == 0) return 0;
  const double share =
      static_cast<double>(tokens * moe.experts_per_token) / static_cast<double>(moe.experts);
  return std::max<std::int64_t>(1,
                                static_cast<std::int64_t>(std::ceil(moe.capacity_factor * share)));
}

torch::Tensor earlier_slots(const torch::Tensor& ids, const torch::Tensor& places,
                            std::int64_t experts) {
  const auto host = ids.to(torch::kCPU).contiguous();
  const auto order = places.to(torch::kCPU).argsort().contiguous();
  torch::Tensor earlier = torch::empty(host.sizes(), torch::kLong);
  const auto *id = host.data_ptr<std::int64_t>(), *token = order.data_ptr<std::int64_t>();
  auto* result = earlier.data_ptr<std::int64_t>();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts), 0);
  const std::int64_t k = host.size(1);
  for (std::int64_t i = 0; i < host.size(0); ++i)
    for (std::int64_t s = token[i] * k; s < (token[i] + 1) * k; ++s)
      result[s] = counts[static_cast<std::size_t>(id[s])]++;
  return earlier;
}

SlotOrder sort_slots(const torch::Tensor& ids, std::int64_t experts, std::int64_t capacity,
                     const torch::Tensor& earlier) {
  const auto host = ids.to(torch::kCPU).contiguous();
  const std::int64_t size = host.numel();
  const auto* id = host.data_ptr<std::int64_t>();
  SlotOrder order{{}, torch::empty(host.sizes(), torch::kLong), {}};
  order.counts.assign(static_cast<std::size_t>(experts), 0);
  const auto count = [&](std::int64_t slot) -> std::int64_t& {
    TUTTI_ASSERT(id[slot] >= 0 && id[slot] < experts);
    return order.counts[static_cast<std::size_t>(id[slot])];
  };
  auto* place = order.places.data_ptr<std::int64_t>();  // first within the expert
  const auto* before = earlier.defined() ? earlier.data_ptr<std::int64_t>() : nullptr;
  for (std::int64_t s = 0; s < size; ++s) {
    const bool dropped = capacity > 0 && (before ? before[s] : count(s)) >= capacity;
    place[s] = dropped ? -1 : count(s)++;
  }
  std::vector<std::int64_t> first;
  std::int64_t rows = 0;
  for (const std::int64_t n : order.counts) first.push_back(std::exchange(rows, rows + n));
  order.slots = torch::empty({rows}, torch::kLong);
  auto* slot_of = order.slots.data_ptr<std::int64_t>();
  for (std::int64_t s = 0; s < size; ++s) {
    if (place[s] < 0) continue;
    place[s] += first[static_cast<std::size_t>(id[s])];
    slot_of[place[s]] = s;
  }
  order.slots = order.slots.to(ids.device());
  order.places = order.places.to(ids.device());
  return order;
}

torch::Tensor choices(const torch::Tensor& ids, const torch::Tensor& counted,
                      std::int64_t experts) {
  const auto chosen = ids.index({counted}).flatten();
  return torch::bincount(chosen, {}, experts);
}

torch::Tensor router_losses(const Routing& routing, const torch::Tensor& f,
                            const torch::Tensor& counted, const recipe::Moe& moe) {
  const auto& logits = routing.logits;
  torch::Tensor a_token = torch::zeros({logits.size(0)}, logits.options());
  if (moe.aux_loss > 0) {
    torch::Tensor p = routing.probabilities;
    if (moe.router == "sigmoid") p = p / (p.sum(-1, true) + 1e-20);
    const double scale = moe.aux_loss * static_cast<double>(moe.experts) /
                         static_cast<double>(moe.experts_per_token);
    a_token = a_token + (p * f.to(p.scalar_type())).sum(-1) * scale;
  }
  if (moe.z_loss > 0) a_token = a_token + torch::logsumexp(logits, -1).square() * moe.z_loss;
  return a_token.masked_fill(counted.logical_not(), 0).sum(torch::kDouble).to(logits.scalar_type());
}

void update_bias(torch::Tensor& bias, const torch::Tensor& counts, double rate) {
  const auto load = counts.to(torch::kDouble);
  bias.add_((load.mean() - load).sign().to(bias.scalar_type()), rate);
}

}  // namespace tutti::nn
