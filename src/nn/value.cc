#include "nn/value.h"

#include "base/error.h"
#include "base/fault.h"
#include "nn/destination.h"

namespace tutti::nn {
namespace {

using Kind = Type::Kind;

[[noreturn]] void refuse(const char* operation, const std::string& rule, const Type& is) {
  throw ConfigError(str(operation, ": its operand is ", to_text(is), " on the tensor axis, but ",
                        rule, "; see parallel.rules"));
}

bool is_shard(const Type& type, int dim) { return type == Type::shard(dim); }

Value with(const Value& x, torch::Tensor tensor) { return {std::move(tensor), x.rows, x.type}; }

// A parameter that each rank holds whole but uses on its own rows (or heads) only.
void sum_if_cut(const Type& use, const torch::Tensor& parameter) {
  if (use.kind == Kind::shard && parameter.defined()) spread().sum_gradient(parameter);
}

Value to_type(const Value& x, const Type& to, const torch::Tensor& at) {
  if (x.type == to) return x;
  return {spread().convert(x.tensor, x.type, to, x.rows, at), x.rows, to};
}

// The cut of the projections' [out, in] weights: all must be cut alike.
Type cut_of(const std::vector<Projection>& projections) {
  const auto of = [](const Projection& p) {
    Type type = spread().placement(p.weight);
    if (type.kind == Kind::shard && p.transposed) type.dim = 1 - type.dim;
    return type;
  };
  const Type first = of(projections[0]);
  for (const Projection& p : projections)
    if (!(of(p) == first))
      throw ConfigError(str("linear: its weights are cut in two ways, ", to_text(first), " and ",
                            to_text(of(p)), "; see parallel.rules"));
  const Type along = is_shard(first, 0) ? first : Type::replicate();
  for (const Projection& p : projections)
    if (p.bias.defined() && !(spread().placement(p.bias) == along))
      throw ConfigError(str("linear: its weight is ", to_text(first), ", its bias ",
                            to_text(spread().placement(p.bias)), "; see parallel.rules"));
  return first;
}

// All ranks read the same rows, and each computes some of the outputs.
Value output_parallel(const Value& x, const std::vector<Projection>& projections) {
  const Type cut = Type::shard(1);
  if (x.type == Type::varying()) return {linear(x.tensor, projections), x.rows, cut};
  const auto exchange =
      spread().exchange(x.type, Type::varying(), x.rows, x.tensor.size(1), projections[0].weight);
  return {linear(x.tensor, projections, exchange, CutAlong::outputs), x.rows, cut};
}

// Each rank adds its inputs' share; the bias is added once, to the sum.
Value input_parallel(const Value& x, const std::vector<Projection>& projections) {
  if (!is_shard(x.type, 1)) refuse("linear", "its weight is cut along the inputs", x.type);
  TUTTI_ASSERT(projections.size() == 1);
  Projection p = projections[0];
  const torch::Tensor bias = p.bias;
  p.bias = torch::Tensor();
  const Type stream = spread().stream();
  const auto exchange = spread().exchange(Type::partial(), stream, x.rows,
                                          p.weight.size(p.transposed ? 1 : 0), p.weight);
  Value sum{linear(x.tensor, {p}, exchange, CutAlong::inputs), x.rows, stream};
  if (bias.defined()) {
    sum_if_cut(sum.type, bias);
    sum.tensor = sum.tensor + sunk(bias);
  }
  return sum;
}

}  // namespace

Value to_stream(const torch::Tensor& whole, const torch::Tensor& at) {
  return to_type({whole, whole.size(0), Type::replicate()}, spread().stream(), at);
}

Value embedded(const torch::Tensor& ids, const torch::Tensor& weight, Use use) {
  const Type cut = spread().placement(weight);
  if (cut.kind == Kind::replicate) return to_stream(embedding(ids, weight, use), weight);
  if (!is_shard(cut, 0)) refuse("embedding", "it takes rows of its weight", cut);
  const Span part = spread().part(weight);
  const torch::Tensor local = ids.reshape({-1}) - part.begin;
  const torch::Tensor here = (local >= 0).logical_and(local < part.size);
  torch::Tensor rows;
  if (part.size == 0)
    rows = torch::zeros({ids.numel(), weight.size(1)}, weight.options().requires_grad(false));
  else
    rows = embedding(local.clamp(0, part.size - 1), weight, use) *
           here.unsqueeze(1).to(weight.scalar_type());
  return to_type({rows, ids.numel(), Type::partial()}, spread().stream(), weight);
}

std::pair<Value, Value> add_norm(const Value& x, const Value& delta, const NormParameters& norm,
                                 double eps) {
  if (delta.defined() && !(delta.type == x.type))
    refuse("add", "what it is added to is " + to_text(x.type), delta.type);
  if (x.type.kind != Kind::replicate && !is_shard(x.type, 0))
    refuse("norm", "it needs whole rows", x.type);
  sum_if_cut(x.type, norm.weight);
  sum_if_cut(x.type, norm.bias);
  auto [sum, normed] = add_norm(x.tensor, delta.tensor, norm.weight, norm.bias, eps);
  return {with(x, std::move(sum)), with(x, std::move(normed))};
}

Value linear(const Value& x, const std::vector<Projection>& projections) {
  const Type cut = cut_of(projections);
  if (is_shard(cut, 1)) return input_parallel(x, projections);
  if (is_shard(cut, 0)) return output_parallel(x, projections);
  if (x.type.kind != Kind::replicate && !is_shard(x.type, 0))
    refuse("linear", "its weight is whole", x.type);
  for (const Projection& p : projections) {
    sum_if_cut(x.type, p.weight);
    sum_if_cut(x.type, p.bias);
  }
  return with(x, linear(x.tensor, projections));
}

Value swiglu(const Value& gate_up) {
  if (gate_up.type.kind == Kind::partial) refuse("swiglu", "it is not linear", gate_up.type);
  return with(gate_up, swiglu(gate_up.tensor));
}

Value gelu(const Value& x) {
  if (x.type.kind == Kind::partial) refuse("gelu", "it is not linear", x.type);
  return with(x, nn::gelu(x.tensor));
}

Value norm_heads(const Value& qkv, const Heads& heads, const torch::Tensor& query_weight,
                 const torch::Tensor& key_weight, double eps) {
  if (qkv.type.kind != Kind::replicate && !is_shard(qkv.type, 1))
    refuse("norm of heads", "it needs whole heads", qkv.type);
  sum_if_cut(qkv.type, query_weight);
  sum_if_cut(qkv.type, key_weight);
  if (heads.heads == 0) return qkv;
  return with(qkv, norm_heads(qkv.tensor, heads, query_weight, key_weight, eps));
}

Value norm_whole(const Value& qkv, const torch::Tensor& query_weight,
                 const torch::Tensor& key_weight, double eps) {
  if (qkv.type.kind != Kind::replicate)
    refuse("norm of all heads (model.qk_norm_whole)", "it needs all heads of all tokens", qkv.type);
  const std::int64_t query = query_weight.size(0), key = key_weight.size(0);
  const auto part = [&](std::int64_t begin, const torch::Tensor& weight) {
    const auto x = qkv.tensor.narrow(1, begin, weight.size(0)).contiguous();
    return add_norm(x, {}, weight, {}, eps).second;
  };
  return with(qkv, torch::cat({part(0, query_weight), part(query, key_weight),
                               qkv.tensor.narrow(1, query + key, key)},
                              1));
}

Value attention(const Value& qkv, AttentionCall call) {
  if (qkv.type.kind != Kind::replicate && !is_shard(qkv.type, 1))
    refuse("attention", "it needs whole heads of all tokens", qkv.type);
  call.qkv = qkv.tensor;
  // Fewer heads than ranks: this one has none, but the context's collectives are all of its peers',
  // who have none either.
  if (call.heads.heads == 0) return with(qkv, qkv.tensor.narrow(1, 0, 0));
  return with(qkv, spread().attention(call));
}

Value dropped(const Value& x, const torch::Tensor& mask) {
  if (x.type.kind != Kind::replicate && !is_shard(x.type, 0))
    refuse("dropout", "its mask has whole rows", x.type);
  const Span rows = is_shard(x.type, 0) ? spread().rows(x.rows) : Span{0, x.rows};
  const std::int64_t first = fault("dropout-rows") ? 0 : rows.begin;
  const bool all = rows.size == mask.size(0);
  const auto here = all ? mask : mask.narrow(0, first, rows.size).clone();  // lets go of the rest
  return with(x, x.tensor * here.to(x.tensor.scalar_type()));
}

torch::Tensor head_loss(const Value& x, const torch::Tensor& weight, const torch::Tensor& targets,
                        Use use) {
  const Type cut = spread().placement(weight);
  if (cut.kind == Kind::replicate)
    return head_loss(to_type(x, Type::replicate(), weight).tensor, weight, targets, use);
  if (!is_shard(cut, 0)) refuse("head loss", "its weight may only be cut along the ids", cut);
  return vocabulary_parallel_loss(to_type(x, Type::varying(), weight).tensor, weight, targets,
                                  spread().part(weight).begin, use);
}

}  // namespace tutti::nn
