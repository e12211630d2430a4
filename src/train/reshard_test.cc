// A checkpoint saved under any layout goes on under any other, as if it had never been saved.
#include <doctest/doctest.h>

#include "base/fs.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

struct Change {
  std::int64_t workers = 1, zero = 0, shard = 0, tensor = 1, context = 1, pipeline = 1;
  std::string schedule = "1f1b";
  std::int64_t chunks = 1, expert = 1, expert_tensor = 1;
};

// Of 1 to 4 ranks; with 4 shards of its buckets some ranks hold nothing of some parameters.
const std::vector<Change> dense_changes = {{},
                                           {2, 0},
                                           {2, 1},
                                           {3, 2},
                                           {4, 3},
                                           {4, 1, 2},
                                           {4, 3, 2},
                                           {2, 0, 0, 2},
                                           {3, 0, 0, 3},
                                           {4, 2, 0, 2},
                                           {2, 0, 0, 1, 2},
                                           {3, 0, 0, 1, 1, 3, "gpipe"},
                                           {4, 1, 0, 1, 1, 2, "interleaved", 2},
                                           {4, 0, 0, 2, 1, 2}};

// Of 7 experts: 4 and 3; 2 2 2 1; 3 3 1; cut in two.
const std::vector<Change> expert_changes = {
    {},
    {.workers = 2, .expert = 2},
    {.workers = 4, .zero = 1, .expert = 2},
    {.workers = 4, .zero = 2, .expert = 4},
    {.workers = 3, .zero = 3, .expert = 3},
    {.workers = 4, .zero = 3, .shard = 2, .expert = 2},
    {.workers = 2, .tensor = 2, .expert_tensor = 2},
    {.workers = 4, .zero = 1, .tensor = 2, .expert = 2, .expert_tensor = 2},
    {.workers = 4, .pipeline = 2, .expert = 2},
    {.workers = 2, .context = 2, .expert = 2},
    {.workers = 2, .tensor = 2},
    {.workers = 4, .zero = 3, .pipeline = 2, .expert_tensor = 2}};

recipe::Recipe with(recipe::Recipe recipe, const Change& c) {
  recipe::Parallel& p = recipe.parallel;
  p.workers = c.workers;
  p.zero = c.zero;
  p.shard = c.shard;
  p.tensor = c.tensor;
  p.context = c.context;
  p.pipeline = c.pipeline;
  p.pipeline_schedule = c.schedule;
  p.pipeline_chunks = c.chunks;
  p.expert = c.expert;
  p.expert_tensor = c.expert_tensor;
  return recipe;
}

bool keeps_bits(const Change& c) { return c.tensor * c.context * c.expert * c.expert_tensor == 1; }

void check_reshards(const char* family, const std::vector<Change>& changes,
                    torch::ScalarType type) {
  const std::int64_t before = 2, after = whole_grid() ? 5 : 2;
  const TempFolder folder;
  const recipe::Recipe model = base(family);
  const Run whole = train_alone(model, type, {0, before + after});
  std::vector<fs::path> saved;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const recipe::Recipe recipe = with(model, changes[i]);
    CAPTURE(text_of(recipe));
    REQUIRE(legal(recipe));
    saved.push_back(folder.path() / str(i));
    train(recipe, type, {0, before, {}, saved[i]});
  }
  double worst_of_all = 0;
  int pairs = 0;
  for (std::size_t from = 0; from < changes.size(); ++from)
    for (std::size_t to = 0; to < changes.size(); ++to) {
      if (!whole_grid() && (from % 2 || to != (from * 5 + 3) % changes.size())) continue;
      const recipe::Recipe recipe = with(model, changes[to]);
      CAPTURE(text_of(with(model, changes[from])));
      CAPTURE(text_of(recipe));
      Run expected = whole;
      expected.outcomes.erase(expected.outcomes.begin(), expected.outcomes.begin() + before);
      const auto [worst, name] =
          difference(train(recipe, type, {before, after, saved[from]}), expected);
      CAPTURE(name);
      const bool exact = keeps_bits(changes[from]) && keeps_bits(changes[to]);
      CHECK(worst <= (exact && !model.model.tied ? 0 : 1e-6));
      worst_of_all = std::max(worst_of_all, worst);
      ++pairs;
    }
  MESSAGE(model.model.family << ": " << pairs << " pairs of layouts, worst difference "
                             << worst_of_all);
}

TEST_CASE("checkpoints reshard: llama") { check_reshards("llama", dense_changes, torch::kDouble); }
TEST_CASE("checkpoints reshard: a mixture, whose experts are dealt over ranks and cut over them") {
  check_reshards("moe", expert_changes, torch::kDouble);
}
TEST_CASE("checkpoints reshard: a tied gpt2, whose fused weights are cut in three") {
  check_reshards("gpt2", dense_changes, torch::kDouble);
}

}  // namespace
}  // namespace tutti::train
