#include "train/layout_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "parallel/mesh_engine.h"
#include "train/language.h"
#include "train/thread_ranks.h"

namespace tutti::train {
namespace {

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size() + 2), ' ');
  return text;
}

// A row of the table of collectives, once.
struct Call {
  std::string row;  // group, operation
  std::int64_t bytes;
  double seconds;  // not a number: not known
};

// One rank as it is after the step.
struct Rank {
  std::unique_ptr<LanguageTask> task;
  std::unique_ptr<parallel::MeshEngine> engine;
  std::vector<parallel::Boundary> boundaries;
  std::vector<Call> calls;  // of the step
};

void run_rank(const recipe::Recipe& recipe, const plan::Layout& layout,
              const std::shared_ptr<collective::Group>& group, const comm::CostTable* costs,
              Rank& rank) {
  auto model = nn::make_model(recipe.model);
  nn::initialise(*model, recipe.seed);
  rank.task = std::make_unique<LanguageTask>(model, recipe);
  rank.engine = std::make_unique<parallel::MeshEngine>(recipe, *rank.task, layout, group);
  rank.engine->spread().trace(true);
  rank.engine->experts().trace(rank.engine->spread());
  parallel::StepInput input;
  input.batches = [&](std::int64_t) -> parallel::Batch {
    const auto tokens = torch::zeros({recipe.batch.micro, recipe.data.sequence}, torch::kLong);
    return {tokens, tokens};
  };
  group->on_call([&rank, costs](const collective::Call& call) {
    if (call.group.size() == 1) return;
    const std::string& name = call.group.name();  // "tensor (ranks 0, 1)"
    const auto seconds =
        costs ? costs->seconds(call.operation, static_cast<double>(call.bytes), call.group.size())
              : std::nullopt;
    rank.calls.push_back({padded(name.substr(0, name.find(" (")), 18) + padded(call.operation, 22),
                          call.bytes, seconds.value_or(std::numeric_limits<double>::quiet_NaN())});
  });
  rank.engine->step(input);
  group->on_call({});
  rank.boundaries = rank.engine->spread().take_trace();
}

std::vector<Rank> run_ranks(const recipe::Recipe& recipe, const plan::Layout& layout,
                            const comm::CostTable* costs) {
  std::vector<Rank> ranks(static_cast<std::size_t>(recipe.parallel.workers));
  const std::string failure = on_thread_ranks(
      static_cast<int>(recipe.parallel.workers),
      [&](int rank, const std::shared_ptr<collective::Group>& group) {
        run_rank(recipe, layout, group, costs, ranks[static_cast<std::size_t>(rank)]);
      });
  if (!failure.empty()) throw WorldError(failure);
  return ranks;
}

// "model.layers.3.mlp" -> "model.layers.*.mlp"
std::string without_index(const std::string& name) {
  std::vector<std::string> words = split(name, '.');
  for (std::string& word : words)
    if (!word.empty() &&
        std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; }))
      word = "*";
  return join(words, ".");
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(str(size));
  return "[" + join(sizes, " x ") + "]";
}

// Each row once, where it first came, with how often it did.
std::string counted(const std::vector<std::string>& rows) {
  std::map<std::string, int> counts;
  for (const std::string& row : rows) ++counts[row];
  std::string text;
  for (const std::string& row : rows)
    if (const int count = std::exchange(counts[row], 0); count > 0)
      text += "  " + row + (count > 1 ? str("  x ", count) : "") + "\n";
  return text;
}

std::string zero_text(const recipe::Recipe& recipe, const plan::Layout& layout) {
  static const char* const kept[] = {"nothing is sharded", "optimizer state",
                                     "gradients and optimizer state",
                                     "weights, gradients and optimizer state"};
  const auto zero = static_cast<std::size_t>(recipe.parallel.zero);
  return zero == 0 ? str(kept[0], " over ", layout.data, " data ranks")
                   : str(kept[zero], " in ", layout.shard, " shards, ", layout.replica,
                         " replicas of each");
}

// "ranks 4 to 7": those at this place of the pipeline axis, which is the mesh's slowest.
std::string stage_ranks(const plan::Layout& layout, int place) {
  const int each = layout.mesh.world_size() / layout.mesh.size("pipeline");
  const int first = place * each;
  return each == 1 ? str("rank ", first) : str("ranks ", first, " to ", first + each - 1);
}

// Rows of equal parameters of all layers are one.
std::string parameters_text(const std::vector<Rank>& ranks, const plan::Layout& layout) {
  std::vector<std::string> rows;
  const auto& cuts = ranks[0].engine->cuts();
  for (const parallel::Cut& cut : cuts) {
    const bool sliced = cut.type.kind == nn::Type::Kind::shard;
    rows.push_back(padded(without_index(cut.name), 52) + padded(shape_text(cut.shape), 18) +
                   (cut.folded ? str("of expert x expert_tensor: ", shape_text(cut.local_shape()))
                    : layout.mesh.size("tensor") == 1 ? "whole"
                    : sliced ? str(to_text(cut.type), " on tensor: ", shape_text(cut.local_shape()))
                             : std::string("Replicate on tensor")));
  }
  return counted(rows);
}

std::string boundaries_text(const std::vector<Rank>& ranks) {
  std::vector<std::string> rows;
  for (const parallel::Boundary& b : ranks[0].boundaries) {
    rows.push_back(
        padded(without_index(b.at), 52) +
        padded(b.axis == "expert" ? "rows" : to_text(b.from) + " -> " + to_text(b.to), 24) +
        padded(str(b.forward, " / ", b.backward), 30) + human_bytes(static_cast<double>(b.bytes)));
  }
  return counted(rows);
}

// Of each group and operation, the rank that sends the most by it.
std::string calls_text(const std::vector<Rank>& ranks, const comm::CostTable* costs) {
  struct Sum {
    std::int64_t bytes = 0;
    int calls = 0;
    double seconds = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Sum> most;
  double slowest = 0;
  bool all_known = true;
  for (const Rank& rank : ranks) {
    std::map<std::string, Sum> sums;
    double seconds = 0;
    for (const Call& call : rank.calls) {
      if (most.try_emplace(call.row).second) order.push_back(call.row);
      Sum& sum = sums[call.row];
      sum = {sum.bytes + call.bytes, sum.calls + 1, sum.seconds + call.seconds};
      all_known = all_known && !std::isnan(call.seconds);
      if (!std::isnan(call.seconds)) seconds += call.seconds;
    }
    for (const auto& [row, sum] : sums)
      if (sum.bytes >= most[row].bytes) most[row] = sum;
    slowest = std::max(slowest, seconds);
  }
  std::string text;
  for (const std::string& row : order) {
    const Sum& sum = most[row];
    const std::string bytes = human_bytes(static_cast<double>(sum.bytes));
    text += "  " + row + padded(str(sum.calls), 8);
    if (costs)
      text += padded(bytes, 12) + (std::isnan(sum.seconds) ? "?" : time_text(sum.seconds));
    else
      text += bytes;
    text += "\n";
  }
  if (costs && !order.empty())
    text += str("  by the profile (", costs->transport(), ") the slowest rank's take ",
                time_text(slowest), " a step, hidden or not",
                all_known ? "" : ", those marked ? not counted", "\n");
  return text;
}

}  // namespace

std::string layout_text(const recipe::Recipe& asked, std::int64_t vocab,
                        const comm::CostTable* costs) {
  recipe::Recipe recipe = plan::island_of(asked);
  recipe.model = make_language_model(recipe, vocab)->config();
  recipe.model.from.clear();
  const plan::Layout layout = plan::make_layout(recipe);
  recipe.parallel.compress_after = 0;  // the step that runs is one of those that compress
  const std::vector<Rank> ranks = run_ranks(recipe, layout, costs);
  std::string text;
  if (asked.parallel.islands > 1)
    text = str("each of ", asked.parallel.islands, " islands, whose weights cross once in ",
               asked.parallel.local_steps, " steps",
               asked.parallel.fragments > 1 ? str(" in ", asked.parallel.fragments, " fragments")
                                            : std::string(),
               ":\n");
  text += str(layout.mesh.describe(), "\ndata: ", zero_text(recipe, layout), "\n");
  if (layout.folds_experts()) text += str("experts: ", layout.experts.describe(), "\n");
  if (layout.stages.size() > 1) {
    text += str("pipeline: ", layout.schedule.kind, ", layers of its stages");
    for (std::size_t s = 0; s < layout.stages.size(); ++s)
      text += str(" ", layout.stages[s].end - layout.stages[s].begin, " (",
                  stage_ranks(layout, layout.schedule.rank_of[s]), ")");
    text += "\n";
  }
  text += str("\nparameters: global shape, and what tensor and expert rank 0 has of it",
              recipe.parallel.zero == 3 ? str("; zero 3 shards that over ", layout.shard, " ranks")
                                        : "",
              "\n") +
          parameters_text(ranks, layout);
  const std::string boundaries = boundaries_text(ranks);
  text +=
      boundaries.empty()
          ? "\nno conversion within the model\n"
          : "\nconversions of a step on rank 0: forward / backward, bytes of the whole tensor\n" +
                boundaries;
  const std::string calls = calls_text(ranks, costs);
  text += calls.empty() ? "\nno collective\n"
                        : "\ncollectives of a step: group, operation, calls and bytes of the rank "
                          "with the most\n" +
                              calls;
  text += "\nbytes a rank between steps: weights, gradients, optimizer state\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto memory = ranks[r].engine->memory();
    text += str("  rank ", r, "  ", human_bytes(static_cast<double>(memory.parameters)), "  ",
                human_bytes(static_cast<double>(memory.gradients)), "  ",
                human_bytes(static_cast<double>(memory.optimizer)), "\n");
  }
  return text;
}

}  // namespace tutti::train
