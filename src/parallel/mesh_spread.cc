#include "parallel/mesh_spread.h"

#include <functional>

#include "base/error.h"
#include "base/fault.h"
#include "mesh/placement.h"
#include "nn/record.h"
#include "parallel/context.h"
#include "parallel/tensor_exchange.h"

namespace tutti::parallel {
namespace {

using Kind = nn::Type::Kind;
using Map = std::function<torch::Tensor(const torch::Tensor&)>;

std::shared_ptr<collective::Group> if_many(std::shared_ptr<collective::Group> group) {
  return group && group->size() > 1 ? std::move(group) : nullptr;
}

// `forward` of x, with `backward` for its gradient.
torch::Tensor through(const torch::Tensor& x, const char* name, const Map& forward,
                      const Map& backward) {
  torch::Tensor y;
  const bool history = nn::wants_gradient({x});
  {
    const torch::NoGradGuard no_grad;
    y = forward(x.detach());
    if (y.is_same(x) || y.is_alias_of(x)) y = y.variable_data();
  }
  if (history)
    nn::record({y}, {x}, name, [backward](nn::Tensors&& g) -> nn::Tensors {
      return {g[0].defined() ? backward(g[0]) : g[0]};
    });
  return y;
}

// The same values; `told` is called when their gradients come by.
nn::Tensors noticed(nn::Tensors x, std::function<void()> told) {
  nn::Tensors in, out;
  for (torch::Tensor& t : x) {
    if (!t.defined() || !t.requires_grad()) continue;
    in.push_back(t);
    t = t.detach().variable_data();
    out.push_back(t);
  }
  if (!in.empty())
    nn::record(out, in, "unit", [told = std::move(told)](nn::Tensors&& g) -> nn::Tensors {
      told();
      return std::move(g);
    });
  return x;
}

}  // namespace

MeshSpread::MeshSpread(std::shared_ptr<collective::Group> tensor, bool sequence_parallel,
                       std::unique_ptr<ContextAttention> context, int chunks)
    : tensor_(if_many(std::move(tensor))),
      sequence_parallel_(sequence_parallel),
      chunks_(chunks),
      context_(std::move(context)) {}

void MeshSpread::set_cut(const torch::Tensor& parameter, Cut cut) {
  known_.insert_or_assign(parameter.unsafeGetTensorImpl(), Known{std::move(cut)});
}

const MeshSpread::Known* MeshSpread::find(const torch::Tensor& parameter) const {
  const auto found = known_.find(parameter.unsafeGetTensorImpl());
  return found == known_.end() ? nullptr : &found->second;
}

const Cut& MeshSpread::cut_of(const torch::Tensor& parameter) const {
  const Known* known = find(parameter);
  TUTTI_ASSERT(known, "a parameter that was never registered");
  return known->cut;
}

std::string MeshSpread::name_of(const torch::Tensor& parameter) const {
  const Known* known = find(parameter);
  return known ? known->cut.name : "?";
}

bool MeshSpread::asked_for(const torch::Tensor& parameter) const {
  const Known* known = find(parameter);
  return known && known->asked;
}

nn::Type MeshSpread::placement(const torch::Tensor& parameter) const {
  const Known* known = find(parameter);
  if (!known) return {};
  known->asked = true;
  return known->cut.type;
}

nn::Span MeshSpread::part(const torch::Tensor& parameter) const {
  const Known* known = find(parameter);
  if (!known) return {0, parameter.size(0)};
  known->asked = true;
  return known->cut.part;
}

nn::Type MeshSpread::stream() const {
  return tensor_ && sequence_parallel_ ? nn::Type::shard(0) : nn::Type::replicate();
}

nn::Span MeshSpread::rows(std::int64_t rows) const {
  if (!tensor_) return {0, rows};
  const Slice slice = slice_of(rows, tensor_->size(), tensor_->rank());
  return {slice.begin, slice.size};
}

void MeshSpread::sum_gradient(const torch::Tensor& parameter) {
  if (tensor_) summed_.insert(parameter.unsafeGetTensorImpl());
}

bool MeshSpread::sums_gradient(const torch::Tensor& parameter) const {
  return summed_.contains(parameter.unsafeGetTensorImpl());
}

torch::Tensor MeshSpread::all_reduced(const torch::Tensor& x) const {
  torch::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  tensor_->all_reduce(y);
  return y;
}

torch::Tensor MeshSpread::gathered(const torch::Tensor& x, std::int64_t rows) const {
  return TensorExchange(tensor_, rows, true, 1).gathered(x, [](nn::Span, const torch::Tensor&) {});
}

torch::Tensor MeshSpread::sliced(const torch::Tensor& x) const {
  const nn::Span span = rows(x.size(0));
  return x.narrow(0, span.begin, span.size).clone();
}

torch::Tensor MeshSpread::scattered(const torch::Tensor& x) const {
  collective::Counts counts;
  for (int r = 0; r < tensor_->size(); ++r)
    counts.push_back(slice_of(x.size(0), tensor_->size(), r).size * x.size(1));
  const torch::Tensor mine = torch::empty({rows(x.size(0)).size, x.size(1)}, x.options());
  tensor_->reduce_scatter_v(x.contiguous(), mine, counts);
  return mine;
}

bool MeshSpread::loses_sums(const nn::Type& from) const {
  return from.kind == Kind::partial ? fault("row-parallel-sum") : fault("input-gradient-sum");
}

void MeshSpread::refuse(nn::Type from, nn::Type to, const torch::Tensor& at) const {
  throw ConfigError(str("the operation with ", name_of(at), " needs ", to_text(to),
                        " on the tensor axis, but its operand is ", to_text(from),
                        "; see parallel.rules"));
}

std::shared_ptr<nn::RowExchange> MeshSpread::exchange(nn::Type from, nn::Type to, std::int64_t rows,
                                                      std::int64_t features,
                                                      const torch::Tensor& at) {
  if (!tensor_) return nn::Spread::exchange(from, to, rows, features, at);
  const bool gathers = to == nn::Type::varying();
  const nn::Type stream = gathers ? from : to;
  const bool by_rows = stream == nn::Type::shard(0);
  if ((!gathers && from.kind != Kind::partial) || (!by_rows && stream.kind != Kind::replicate))
    refuse(from, to, at);
  const char* const gather = by_rows ? "all-gather" : "none";
  const char* const sum = by_rows ? "reduce-scatter" : "all-reduce";
  if (tracing_)
    note({name_of(at), "tensor", from, to, gathers ? gather : sum, gathers ? sum : gather,
          rows * features * static_cast<std::int64_t>(at.element_size())});
  return std::make_shared<TensorExchange>(tensor_, rows, by_rows, chunks_, loses_sums(from));
}

torch::Tensor MeshSpread::convert(const torch::Tensor& x, nn::Type from, nn::Type to,
                                  std::int64_t rows, const torch::Tensor& at) {
  if (!tensor_) return x;
  const auto same = [](const torch::Tensor& t) { return t; };
  const auto reduce = [this, from](const torch::Tensor& t) {
    return loses_sums(from) ? t.clone() : all_reduced(t);
  };
  const auto gather = [this, rows](const torch::Tensor& t) { return gathered(t, rows); };
  const auto scatter = [this, from](const torch::Tensor& t) {
    return loses_sums(from) ? sliced(t) : scattered(t);
  };
  const auto slice = [this](const torch::Tensor& t) { return sliced(t); };
  const auto is = [&](const nn::Type& a, const nn::Type& b) { return from == a && to == b; };
  const auto replicate = nn::Type::replicate(), rows_type = nn::Type::shard(0),
             partial = nn::Type::partial(), varying = nn::Type::varying();
  const auto run = [&](const char* forward_name, const char* backward_name, const Map& forward,
                       const Map& backward) {
    if (tracing_)
      note({name_of(at), "tensor", from, to, forward_name, backward_name,
            rows * x.size(1) * static_cast<std::int64_t>(x.element_size())});
    return through(x, "convert", forward, backward);
  };
  if (is(replicate, varying)) return run("none", "all-reduce", same, reduce);
  if (is(partial, replicate)) return run("all-reduce", "none", reduce, same);
  if (is(rows_type, varying)) return run("all-gather", "reduce-scatter", gather, scatter);
  if (is(partial, rows_type)) return run("reduce-scatter", "all-gather", scatter, gather);
  if (is(replicate, rows_type)) return run("slice", "all-gather", slice, gather);
  if (is(rows_type, replicate)) return run("all-gather", "slice", gather, slice);
  refuse(from, to, at);
}

torch::Tensor MeshSpread::max(const torch::Tensor& x) {
  if (!tensor_ || fault("vocabulary-max")) return x;
  torch::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  tensor_->all_reduce(y, comm::Reduce::max);
  return y;
}

torch::Tensor MeshSpread::sum(const torch::Tensor& x) {
  return tensor_ && !fault("vocabulary-sum") ? all_reduced(x) : x;
}

torch::Tensor MeshSpread::positions(std::int64_t sequence) const {
  asked_for_positions_ = true;
  return context_ ? context_->positions(sequence) : torch::Tensor();
}

nn::Tensors MeshSpread::before_unit(const std::string& name, nn::Tensors x) {
  if (!unit_hook_) return x;
  unit_hook_(name, Use::forward_begin);
  if (!nn::wants_gradient(x)) return x;
  return noticed(std::move(x), [this, name] { unit_hook_(name, Use::backward_end); });
}

nn::Tensors MeshSpread::after_unit(const std::string& name, nn::Tensors x) {
  if (!unit_hook_) return x;
  unit_hook_(name, Use::forward_end);
  if (!nn::wants_gradient(x)) return x;
  return noticed(std::move(x), [this, name] { unit_hook_(name, Use::backward_begin); });
}

torch::Tensor MeshSpread::attention(const nn::AttentionCall& call) {
  return context_ ? context_->run(call) : nn::Spread::attention(call);
}

}  // namespace tutti::parallel
