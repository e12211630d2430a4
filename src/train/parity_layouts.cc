#include "train/parity_layouts.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "plan/layout.h"

namespace tutti::train {
namespace {

using recipe::Parallel;
using Axes = std::vector<std::string>;

std::int64_t data_ranks(const Parallel& p) { return p.workers / recipe::model_ranks(p); }

Axes axes_of(const Parallel& p) {
  Axes axes;
  const auto add = [&](bool is_there, const char* axis) {
    if (is_there) axes.emplace_back(axis);
  };
  const bool data = data_ranks(p) > 1;
  add(data, "data");
  add(data && p.zero > 0, "zero");
  add(p.tensor > 1, "tensor");
  add(p.tensor > 1 && p.sequence_parallel, "sequence");
  add(p.context > 1, "context");
  add(p.pipeline > 1, "pipeline");
  add(p.expert > 1, "expert");
  add(p.expert_tensor > 1, "expert_tensor");
  return axes;
}

bool has(const Axes& axes, const char* axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// `whole` with these axes only. Experts are dealt over ranks that other axes bring: over data ranks
// if there are none.
Parallel only(const Parallel& whole, const Axes& axes) {
  Parallel p;
  p.threads = whole.threads;
  p.bucket_bytes = whole.bucket_bytes;
  p.overlap = whole.overlap;
  const bool spreads_data = has(axes, "data") || has(axes, "zero");
  p.engine = whole.engine == "mesh" || whole.engine == "sharded" || axes != Axes{"data"}
                 ? "mesh"
                 : whole.engine;
  if (has(axes, "zero")) {
    p.zero = whole.zero;
    p.shard = whole.shard;
    p.prefetch = whole.prefetch;
    p.reshard_after_forward = whole.reshard_after_forward;
  }
  p.sequence_parallel = has(axes, "sequence");
  if (has(axes, "tensor") || has(axes, "sequence")) {
    p.tensor = whole.tensor;
    p.tensor_chunks = whole.tensor_chunks;
    p.rules = whole.rules;
  }
  if (has(axes, "context")) {
    p.context = whole.context;
    p.context_kind = whole.context_kind;
    p.ulysses = whole.ulysses;
  }
  if (has(axes, "pipeline")) {
    p.pipeline = whole.pipeline;
    p.pipeline_schedule = whole.pipeline_schedule;
    p.pipeline_chunks = whole.pipeline_chunks;
    p.pipeline_cut = whole.pipeline_cut;
  }
  if (has(axes, "expert")) p.expert = whole.expert;
  if (has(axes, "expert_tensor")) p.expert_tensor = whole.expert_tensor;
  const std::int64_t folded = p.expert * p.expert_tensor, here = p.tensor * p.context;
  std::int64_t data = spreads_data ? data_ranks(whole) : 1;
  if (folded > 1 && (data * here) % folded != 0) data = folded;
  p.workers = data * recipe::model_ranks(p);
  return p;
}

SubLayout make(const Parallel& whole, const Axes& axes) {
  return {join(axes, " + "), axes, only(whole, axes)};
}

// Why it is no layout; "" if it is one.
std::string refused(const recipe::Recipe& whole, const Parallel& parallel) {
  recipe::Recipe recipe = whole;
  recipe.parallel = parallel;
  if (recipe.batch.global % (data_ranks(parallel) * recipe.batch.micro) != 0)
    return "its data ranks do not divide the micro-batches";
  const auto found = plan::layout_violations(recipe);
  return found.empty() ? "" : to_text(found[0]);
}

}  // namespace

bool contains_axis(const std::string& outer, const std::string& inner) {
  return (outer == "zero" && inner == "data") || (outer == "sequence" && inner == "tensor");
}

std::string describe_layout(const Parallel& p) {
  std::string text = str("workers ", p.workers);
  const auto degree = [&](const char* name, std::int64_t value, const std::string& more = "") {
    if (value > 1) text += str(", ", name, " ", value, more);
  };
  degree("data", data_ranks(p));
  if (p.zero > 0) text += str(", zero ", p.zero);
  degree("shard", p.shard);
  degree("tensor", p.tensor, p.sequence_parallel ? " with sequence parallel" : "");
  degree("context", p.context,
         str(" (", p.context_kind, p.context_kind == "mixed" ? str(" ", p.ulysses) : "", ")"));
  degree("pipeline", p.pipeline,
         str(" (", p.pipeline_schedule,
             p.pipeline_chunks > 1 ? str(" x ", p.pipeline_chunks) : std::string(), ")"));
  degree("expert", p.expert);
  degree("expert_tensor", p.expert_tensor);
  degree("tensor_chunks", p.tensor_chunks);
  if (p.pipeline_cut != "even") text += str(", cut ", p.pipeline_cut);
  if (!p.rules.empty()) text += str(", rules ", p.rules);
  return text;
}

std::vector<SubLayout> single_layouts(const recipe::Recipe& recipe,
                                      std::vector<std::string>& notes) {
  std::vector<SubLayout> all;
  for (const std::string& axis : axes_of(recipe.parallel)) {
    SubLayout sub = make(recipe.parallel, {axis});
    const std::string why = refused(recipe, sub.parallel);
    if (why.empty())
      all.push_back(std::move(sub));
    else
      notes.push_back(str(axis, " alone was not tried: ", why));
  }
  return all;
}

std::vector<SubLayout> paired_layouts(const recipe::Recipe& recipe) {
  Axes axes = axes_of(recipe.parallel);
  for (const char* inner : {"data", "tensor"})
    if (has(axes, inner == std::string("data") ? "zero" : "sequence"))
      std::erase(axes, std::string(inner));
  std::vector<SubLayout> all;
  for (std::size_t a = 0; axes.size() > 2 && a < axes.size(); ++a)
    for (std::size_t b = a + 1; b < axes.size(); ++b) {
      SubLayout sub = make(recipe.parallel, {axes[a], axes[b]});
      if (refused(recipe, sub.parallel).empty()) all.push_back(std::move(sub));
    }
  return all;
}

}  // namespace tutti::train
