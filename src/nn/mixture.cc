#include "nn/mixture.h"

#include "base/error.h"
#include "base/fault.h"
#include "nn/destination.h"
#include "nn/expert_spread.h"
#include "nn/moe.h"

namespace tutti::nn {
namespace {

using Kind = Type::Kind;

Value to_type(const Value& x, const Type& to, const torch::Tensor& at) {
  if (x.type == to) return x;
  return {spread().convert(x.tensor, x.type, to, x.rows, at), x.rows, to};
}

// What the experts' cut asks x to be.
Type wanted(const Type& stream, const MixtureParameters& p) {
  const Type gate = spread().placement(p.gate), down = spread().placement(p.down);
  const bool slices = gate == Type::shard(1) && down == Type::shard(2);
  const bool whole = gate == Type::replicate() && down == Type::replicate();
  if (!(spread().placement(p.up) == gate) || !(slices || whole))
    throw ConfigError(str("experts: gate and up are ", to_text(gate), " and ",
                          to_text(spread().placement(p.up)), ", down is ", to_text(down),
                          ": they must be cut along mlp, or not; see parallel.rules"));
  if (!whole) return Type::varying();
  return expert_spread().spreads() ? Type::shard(0) : stream;
}

// Of the rows of x.tensor: those whose share of the loss is this rank's.
torch::Tensor counted_here(const torch::Tensor& counted, const Value& x) {
  if (x.type.kind == Kind::replicate || fault("router-loss-share")) return counted;
  const Span mine = spread().rows(x.rows);
  if (x.type.kind == Kind::shard) return counted.narrow(0, mine.begin, mine.size);
  torch::Tensor part = torch::zeros_like(counted);
  part.narrow(0, mine.begin, mine.size).copy_(counted.narrow(0, mine.begin, mine.size));
  return part;
}

// Choices, and tokens behind them, of the whole micro-batch.
torch::Tensor count(const Value& x, const Routing& routing, const torch::Tensor& counted,
                    const recipe::Moe& moe) {
  const torch::Tensor here =
      x.type.kind == Kind::shard ? counted_here(counted, x) : counted;  // of x.tensor's rows
  return expert_spread().sum_over_tokens(choices(routing.ids, here, moe.experts), x.type);
}

torch::Tensor loss_of(const Value& x, const Routing& routing, const torch::Tensor& counted,
                      const MixtureParameters& p, const recipe::Moe& moe,
                      const torch::Tensor& counts) {
  torch::Tensor f = p.load;
  if (moe.aux_scope == "micro") {
    const auto wide = counts.to(torch::kDouble);
    f = wide * static_cast<double>(moe.experts_per_token) / wide.sum().clamp_min(1);
  }
  const torch::Tensor loss = router_losses(routing, f, counted_here(counted, x), moe);
  if (x.type.kind == Kind::replicate) return loss;
  return spread()
      .convert(loss.view({1, 1}), Type::partial(), Type::replicate(), 1, p.router)
      .squeeze();
}

SlotOrder order_of(const Value& x, const Routing& routing, const recipe::Moe& moe,
                   const MixtureTokens& tokens) {
  const std::int64_t capacity = tokens.limited ? capacity_of(moe, tokens.whole) : 0;
  if (capacity == 0) return sort_slots(routing.ids, moe.experts);
  torch::Tensor places =
      tokens.places.defined() ? tokens.places : torch::arange(x.rows, torch::kLong);
  if (x.type.kind == Kind::shard) {
    const Span mine = spread().rows(x.rows);
    places = places.narrow(0, mine.begin, mine.size);
  }
  return sort_slots(routing.ids, moe.experts, capacity,
                    expert_spread().earlier(routing.ids, places, moe.experts, x.type));
}

Value through_experts(const Value& x, const Routing& routing, const MixtureParameters& p,
                      const recipe::Moe& moe, const MixtureTokens& tokens) {
  const SlotOrder order = order_of(x, routing, moe, tokens);
  const ExpertSpread::Sent sent = expert_spread().send(dispatch(x.tensor, order), order.counts);
  const torch::Tensor rows =
      expert_spread().bring_back(experts_mlp(sent.rows, sent.counts, p.gate, p.up, p.down), sent);
  const bool slices = x.type.kind == Kind::varying;
  return {combine(rows, routing.weights, order), x.rows, slices ? Type::partial() : x.type};
}

Value shared(const Value& x, const MixtureParameters& p) {
  Value y = linear(swiglu(linear(x, p.shared_up)), {p.shared_down});
  if (!p.shared_gate.defined()) return y;
  const Value gate = linear(x, {{p.shared_gate, {}}});
  y.tensor = torch::sigmoid(gate.tensor) * y.tensor;
  return y;
}

}  // namespace

Value mixture(const Value& x, const MixtureParameters& p, const recipe::Moe& moe,
              const MixtureTokens& tokens, MixtureTrace& trace) {
  const Value in = to_type(x, wanted(x.type, p), p.gate);
  if (in.type.kind != Kind::replicate) spread().sum_gradient(p.router);
  if (in.type.kind == Kind::shard && !expert_spread().spreads())  // whole experts, some tokens
    for (const auto& weight : {p.gate, p.up, p.down}) spread().sum_gradient(weight);
  const bool again = trace.ids.defined();
  const Routing routing = route(nn::linear(in.tensor, {{p.router, {}}}), p.bias, moe, trace.ids);
  trace.ids = routing.ids;
  if (tokens.counted.defined()) {
    if (!again) trace.counts = count(in, routing, tokens.counted, moe);
    if (moe.aux_loss > 0 || moe.z_loss > 0)
      trace.loss = loss_of(in, routing, tokens.counted, p, moe, trace.counts);
  }
  Value y = to_type(through_experts(in, routing, p, moe, tokens), x.type, p.down);
  if (!p.shared_up.empty()) y.tensor = y.tensor + shared(x, p).tensor;
  return y;
}

}  // namespace tutti::nn
