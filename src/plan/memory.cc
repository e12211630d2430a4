#include "plan/memory.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "mesh/placement.h"
#include "plan/layout_rules.h"
#include "recipe/quantity.h"
#include "recipe/show.h"

namespace tutti::plan {
namespace {

using recipe::Model;
using recipe::Recipe;

Model resolved(const Recipe& recipe) {
  Recipe copy = recipe;
  recipe::resolve(copy, Sizes(recipe).vocab, 1);
  return copy.model;
}

bool is_mixture(const Model& m, std::int64_t layer) {
  return m.moe.experts > 0 && layer >= m.moe.dense_layers;
}

// Sizes of one rank's part of the model.
class Part {
 public:
  Part(const Model& model, const Layout& layout, int rank)
      : m_(model), layout_(layout), rank_(rank), tensor_(layout.mesh.size("tensor")) {}

  ParameterCount layer(std::int64_t index) const {
    const bool gpt2 = m_.family == "gpt2";
    ParameterCount count{gpt2 ? gpt2_attention() : llama_attention(), 0};
    if (!is_mixture(m_, index)) {
      const std::int64_t width = cut(m_.mlp, "mlp");
      count.dense += gpt2 ? (2 * m_.embed + 1) * width + m_.embed : 3 * m_.embed * width;
      return count;
    }
    const recipe::Moe& moe = m_.moe;
    count.dense += moe.experts * m_.embed;
    count.dense += 3 * m_.embed * cut(moe.shared_experts * moe.expert_mlp, "mlp");
    count.dense += moe.shared_gate ? m_.embed : 0;
    count.experts = 3 * m_.embed * folded(moe.experts, "expert") *
                    (layout_.folds_experts() ? folded(moe.expert_mlp, "expert_tensor")
                                             : cut(moe.expert_mlp, "mlp"));
    return count;
  }

  std::int64_t embedding() const { return cut(m_.vocab, "vocab") * m_.embed; }
  std::int64_t positions() const { return m_.family == "gpt2" ? m_.context * m_.embed : 0; }
  std::int64_t last_norm() const { return m_.family == "gpt2" ? 2 * m_.embed : m_.embed; }

 private:
  std::int64_t cut(std::int64_t size, const char* axis) const {
    if (layout_.rules.at(axis) != "tensor") return size;
    return slice_of(size, tensor_, layout_.mesh.coordinate(rank_, "tensor")).size;
  }
  std::int64_t folded(std::int64_t size, const char* axis) const {
    return slice_of(size, layout_.experts.size(axis), layout_.experts.coordinate(rank_, axis)).size;
  }
  // Of query heads and of key heads, here.
  std::int64_t query() const { return key() * (m_.heads / m_.kv_heads); }
  std::int64_t key() const { return cut(m_.kv_heads, "heads") * m_.head_dim; }

  std::int64_t llama_attention() const {
    const std::int64_t rows = query() + 2 * key();
    std::int64_t count = rows * m_.embed + query() * m_.embed + 2 * m_.embed;
    if (m_.qkv_bias) count += rows;
    if (m_.qk_norm_whole) return count + (m_.heads + m_.kv_heads) * m_.head_dim;
    return count + (m_.qk_norm ? 2 * m_.head_dim : 0);
  }
  std::int64_t gpt2_attention() const {
    return 3 * query() * (m_.embed + 1) + (query() + 1) * m_.embed + 4 * m_.embed;
  }

  const Model& m_;
  const Layout& layout_;
  int rank_, tensor_;
};

// The stages of a rank.
std::vector<StageLayers> own_stages(const Layout& layout, int rank) {
  std::vector<StageLayers> own;
  for (std::size_t s = 0; s < layout.stages.size(); ++s)
    if (layout.schedule.rank_of[s] == layout.mesh.coordinate(rank, "pipeline"))
      own.push_back(layout.stages[s]);
  return own;
}

bool has_stage(const Layout& layout, int rank, std::size_t stage) {
  return layout.schedule.rank_of[stage] == layout.mesh.coordinate(rank, "pipeline");
}

bool half(const Recipe& recipe) { return recipe.precision == "bf16" || recipe.precision == "fp16"; }

// Buffers in which gradients wait to be added along the tree: one a level, and the one that comes.
double gradient_buffers(const Recipe& recipe, std::int64_t micro_batches) {
  if (!recipe.reproducible) return 1;
  return std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(micro_batches, 1)));
}

// Bytes of the optimizer's buffers a parameter. Muon holds one moment for its matrices and two for
// the rest, which is little beside them, and the directions of the step, which are fp32.
double moments(const recipe::Optimizer& optimizer) {
  const double one = optimizer.state == "bf16" ? 2 : 4;
  if (optimizer.name == "sgd") return one;
  return optimizer.name == "muon" ? one + 4 : 2 * one;
}

// Of `count` parameters that `replicas` ranks hold or share, in `ranks` shards.
RankMemory state_of(const Recipe& recipe, const Layout& layout, double count, double ranks,
                    int replicas) {
  const int stage = static_cast<int>(recipe.parallel.zero);
  const bool sharded = stage > 0 && ranks > 1, copies = half(recipe) || (sharded && stage < 3);
  const StateBytes bytes = zero_shared(
      {half(recipe) ? 2.0 : 4.0, 4, moments(recipe.optimizer) + (copies ? 4 : 0)}, stage, ranks);
  const std::int64_t here = layout.schedule.micro_batches;
  RankMemory memory;
  memory.parameters = count * bytes.parameter;
  memory.optimizer = count * bytes.optimizer;
  if (!sharded && stage < 2)
    memory.gradients = count * bytes.gradient * gradient_buffers(recipe, here);
  else if (stage == 1)
    memory.gradients = count * (bytes.gradient * gradient_buffers(recipe, here) + 4 / ranks);
  else  // a data rank adds up its own part for all, then a shard's replicas share theirs
    memory.gradients =
        count * 4 * (gradient_buffers(recipe, here * replicas) / replicas + 1 / ranks);
  const std::string& compress = recipe.parallel.compress;
  if (compress == "none" || layout.data == 1) return memory;
  // What was not sent, before and after the step; of sums that are rounded again, the own part.
  const bool again = stage == 0 && compress != "topk" && compress != "powersgd";
  memory.gradients += count * 8 * (again ? 1 + 1.0 / layout.data : 1);
  return memory;
}

using Kinds = std::vector<recipe::Recompute>;

// With dropout attention runs unfused: it keeps softmax in fp32, its mask and their product.
Kept kept_by(const Recipe& recipe, const Model& model, recipe::Recompute kind) {
  Kept kept;
  kept.value = half(recipe) ? 2 : 4;
  kept.gathered = recipe.parallel.tensor > 1 && recipe.parallel.sequence_parallel;
  kept.selective = kind == recipe::Recompute::selective;
  if (model.dropout > 0) {
    kept.mask = kept.value;
    kept.score = 4 + 2 * kept.value;
    kept.spread = true;
    kept.keys = recipe.data.sequence;
  }
  return kept;
}

// Of a sequence, on a rank.
std::int64_t tokens_here(const Recipe& recipe) {
  return (recipe.data.sequence + recipe.parallel.context - 1) / recipe.parallel.context;
}

double activations_of(const Recipe& recipe, const Model& model, const Layout& layout, int rank,
                      const Kinds& kinds) {
  using recipe::Recompute;
  const recipe::Parallel& p = recipe.parallel;
  const std::int64_t sequence = tokens_here(recipe);
  const double tokens = static_cast<double>(recipe.batch.micro * sequence);
  const double row = tokens * static_cast<double>(model.embed) * (half(recipe) ? 2.0 : 4.0) /
                     static_cast<double>(p.sequence_parallel ? p.tensor : 1);
  double most = 0, whole = 0;
  for (const StageLayers& stage : own_stages(layout, rank)) {
    double sum = 0;
    for (std::int64_t index = stage.begin; index < stage.end; ++index) {
      const Recompute kind = kinds[static_cast<std::size_t>(index)];
      const double layer =
          layer_bytes(model, recipe.batch.micro, sequence, kept_by(recipe, model, kind), p.tensor,
                      p.sequence_parallel, is_mixture(model, index));
      if (kind == Recompute::full) whole = std::max(whole, layer);
      sum += kind == Recompute::full ? 2 * row : layer;  // the stream and what is added to it
    }
    most = std::max(most, sum);
  }
  const PipelineTiming timing = simulate(layout.schedule, {});
  const auto at = static_cast<std::size_t>(layout.mesh.coordinate(rank, "pipeline"));
  double ends = has_stage(layout, rank, layout.stages.size() - 1) ? 2 * row : 0;
  if (model.dropout > 0 && has_stage(layout, rank, 0))  // the embedding's mask
    ends += row * timing.peak_activations[at];
  return most * timing.peak_activations[at] + whole + ends;
}

double working_of(const Recipe& recipe, const Model& model) {
  const recipe::Parallel& p = recipe.parallel;
  const auto tokens = static_cast<double>(recipe.batch.micro * tokens_here(recipe));
  std::int64_t widest = std::max(model.mlp, model.embed);
  if (model.moe.experts > 0)
    widest = std::max(widest, model.moe.experts_per_token * model.moe.expert_mlp);
  if (model.dropout > 0) widest = std::max(widest, model.heads * recipe.data.sequence);
  return tokens * static_cast<double>(widest) * (half(recipe) ? 2 : 4) /
         static_cast<double>(p.tensor);
}

RankMemory memory_with(const Recipe& recipe, const Layout& layout, int rank, const Kinds& kinds) {
  const ParameterCount count = parameters_of(recipe, layout, rank);
  RankMemory memory =
      state_of(recipe, layout, static_cast<double>(count.dense), layout.shard, layout.data);
  const bool folded = layout.folds_experts();
  const RankMemory experts = state_of(recipe, layout, static_cast<double>(count.experts),
                                      folded ? layout.expert_shard : layout.shard,
                                      folded ? layout.experts.size("expert_replica") : layout.data);
  memory.parameters += experts.parameters;
  memory.gradients += experts.gradients;
  memory.optimizer += experts.optimizer;
  const Model model = resolved(recipe);
  memory.activations = activations_of(recipe, model, layout, rank, kinds);
  memory.working = working_of(recipe, model);
  return memory;
}

// The first `count` layers of each stage of `rank`.
void set_first(const Layout& layout, int rank, std::int64_t count, recipe::Recompute kind,
               Kinds& kinds) {
  for (const StageLayers& stage : own_stages(layout, rank))
    for (std::int64_t i = stage.begin; i < std::min(stage.end, stage.begin + count); ++i)
      kinds[static_cast<std::size_t>(i)] = kind;
}

// The first rank of a place in the pipeline: it has the largest slices.
int first_rank(const Layout& layout, int pipeline) {
  int rank = 0;
  while (layout.mesh.coordinate(rank, "pipeline") != pipeline) ++rank;
  return rank;
}

// Takes a rank's own stages from no recomputation to all of it, step by step, until enough(memory);
// false if it never was. Those of the ranks beside it are the same.
template <class Enough>
bool recompute_until(const Recipe& recipe, const Layout& layout, int rank, Kinds& kinds,
                     const Enough& enough) {
  std::int64_t longest = 0;
  for (const StageLayers& stage : own_stages(layout, rank))
    longest = std::max(longest, stage.end - stage.begin);
  if (enough(memory_with(recipe, layout, rank, kinds))) return true;
  for (const auto kind : {recipe::Recompute::selective, recipe::Recompute::full})
    for (std::int64_t count = 1; count <= longest; ++count) {
      set_first(layout, rank, count, kind, kinds);
      if (enough(memory_with(recipe, layout, rank, kinds))) return true;
    }
  return false;
}

void fit(const Recipe& recipe, const Layout& layout, int rank, Kinds& kinds) {
  const auto budget = static_cast<double>(recipe.memory_budget);
  if (recompute_until(recipe, layout, rank, kinds,
                      [&](const RankMemory& memory) { return memory.total() <= budget; }))
    return;
  const RankMemory least = memory_with(recipe, layout, rank, kinds);
  throw ConfigError({{"memory_budget", "", str(recipe.memory_budget),
                      str("is too little: with every layer recomputed rank ", rank,
                          " would hold about ", std::llround(least.total()), " bytes, ",
                          std::llround(least.activations), " of them activations"),
                      "raise it, lower batch.micro, or spread over more workers"}});
}

}  // namespace

StateBytes zero_shared(const StateBytes& whole, int stage, double ranks) {
  return {stage >= 3 ? whole.parameter / ranks : whole.parameter,
          stage >= 2 ? whole.gradient / ranks : whole.gradient,
          stage >= 1 ? whole.optimizer / ranks : whole.optimizer};
}

double layer_bytes(const Model& m, std::int64_t samples, std::int64_t sequence, const Kept& kept,
                   std::int64_t tensor, bool sequence_parallel, bool mixture) {
  const auto real = [](std::int64_t size) { return static_cast<double>(size); };
  const double embed = real(m.embed), parts = real(tensor), rows = sequence_parallel ? parts : 1;
  // Two sums of the stream and two norms of them, which two matrix products take.
  const double sums = 2 * embed * kept.value / rows;
  const bool again = kept.selective && !kept.gathered;
  const double inputs = again ? 0 : 2 * embed * kept.value / (kept.gathered ? 1 : rows);
  const double masks = 2 * embed * kept.mask / rows;
  // Queries, keys, values, and what attention makes of them.
  const std::int64_t keys = kept.spread ? m.heads : m.kv_heads;
  const double heads = real(2 * m.heads + 2 * keys) * real(m.head_dim) * kept.value / parts;
  const double scores = real(m.heads * (kept.keys ? kept.keys : sequence)) * kept.score / parts;
  // Gate, up and their product; gelu: two.
  const double ways = (m.family == "gpt2" ? 2 : 3) - (kept.selective ? 1 : 0);
  double mlp = ways * real(m.mlp) * kept.value / parts;
  if (mixture) {
    const recipe::Moe& moe = m.moe;
    const double routed = real(moe.experts_per_token) / rows;
    mlp = kept.value * (routed * (embed + 3 * real(moe.expert_mlp)) +
                        3 * real(moe.shared_experts * moe.expert_mlp) / parts);
  }
  return real(samples * sequence) * (sums + inputs + masks + heads + scores + mlp);
}

ParameterCount parameters_of(const Recipe& recipe, const Layout& layout, int rank) {
  const Model model = resolved(recipe);
  const Part part(model, layout, rank);
  ParameterCount count;
  for (const StageLayers& stage : own_stages(layout, rank))
    for (std::int64_t index = stage.begin; index < stage.end; ++index) {
      const ParameterCount layer = part.layer(index);
      count.dense += layer.dense;
      count.experts += layer.experts;
    }
  const bool first = has_stage(layout, rank, 0);
  const bool last = has_stage(layout, rank, layout.stages.size() - 1);
  if (first) count.dense += part.embedding() + part.positions();
  if (last) count.dense += part.last_norm();
  if (last && !(first && model.tied)) count.dense += part.embedding();
  return count;
}

RankMemory memory_of(const Recipe& recipe, const Layout& layout, int rank) {
  return memory_with(recipe, layout, rank, recompute_of(recipe, layout));
}

std::vector<recipe::Recompute> recompute_of(const Recipe& recipe, const Layout& layout) {
  using recipe::Recompute;
  const auto of_all = [&](Recompute kind) {
    return Kinds(static_cast<std::size_t>(recipe.model.layers), kind);
  };
  if (recipe.recompute == "full") return of_all(Recompute::full);
  if (recipe.recompute == "selective") return of_all(Recompute::selective);
  Kinds kinds = of_all(Recompute::none);
  if (recipe.recompute == "none") return kinds;
  const auto count = recipe::parse_count(recipe.recompute);
  for (int pipeline = 0; pipeline < layout.mesh.size("pipeline"); ++pipeline) {
    const int rank = first_rank(layout, pipeline);
    if (count)
      set_first(layout, rank, *count, Recompute::full, kinds);
    else
      fit(recipe, layout, rank, kinds);
  }
  return kinds;
}

double least_budget(const Recipe& recipe, const Layout& layout) {
  double most = 0;
  const bool chosen = recipe.recompute == "auto";
  Kinds kinds(static_cast<std::size_t>(recipe.model.layers), recipe::Recompute::none);
  if (!chosen) kinds = recompute_of(recipe, layout);
  for (int pipeline = 0; pipeline < layout.mesh.size("pipeline"); ++pipeline) {
    const int rank = first_rank(layout, pipeline);
    double least = memory_with(recipe, layout, rank, kinds).total();
    if (chosen)
      recompute_until(recipe, layout, rank, kinds, [&](const RankMemory& memory) {
        least = std::min(least, memory.total());
        return false;
      });
    most = std::max(most, least);
  }
  return most;
}

}  // namespace tutti::plan
