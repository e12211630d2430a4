// A language model trained in a layout is the model trained on one device: losses, norms, weights
// and optimizer state after some steps, in fp64; bit for bit in fp32 where only data ranks, ZeRO
// stages and pipelines differ.
#include <doctest/doctest.h>

#include <algorithm>
#include <iostream>

#include "train/layout_runs.h"

namespace tutti::train {
namespace {

void check_all(const std::vector<recipe::Recipe>& layouts, torch::ScalarType type,
               double tolerance) {
  double worst_of_all = 0;
  for (const recipe::Recipe& recipe : layouts) {
    CAPTURE(text_of(recipe));
    if (std::getenv("TUTTI_GRID_TRACE")) std::cerr << text_of(recipe) << std::endl;
    const int ranks = static_cast<int>(recipe.parallel.workers);
    const auto [worst, name] = difference(train(recipe, ranks, type, mesh), alone(recipe, type));
    CAPTURE(name);
    CHECK(worst <= tolerance);
    worst_of_all = std::max(worst_of_all, worst);
  }
  CHECK(layouts.size() > 5);
  MESSAGE(layouts.size() << " layouts, worst difference " << worst_of_all);
}

// One of `every`, or all in the whole grid.
void check_layouts(const recipe::Recipe& model, torch::ScalarType type, double tolerance,
                   std::size_t every) {
  std::vector<recipe::Recipe> some;
  std::size_t at = every / 2;
  for (int workers = 2; workers <= (whole_grid() ? 8 : 4); ++workers)
    for (recipe::Recipe& recipe : layouts_of(model, workers))
      if (whole_grid() || at++ % every == 0) some.push_back(std::move(recipe));
  check_all(some, type, tolerance);
}

TEST_CASE("any layout of llama is llama: fp64") {
  check_layouts(base("llama"), torch::kDouble, 1e-6, 31);
}

TEST_CASE("any layout of a tied gpt2 with dropout is gpt2: fp64") {
  check_layouts(base("gpt2"), torch::kDouble, 1e-6, 29);
}

// Experts that no rank shares out or cuts are among them.
TEST_CASE("any layout of a mixture of experts is that mixture: fp64") {
  check_layouts(base("moe"), torch::kDouble, 1e-6, 71);
}

// By sgd: adamw divides gradients that are all rounding by their own size.
TEST_CASE("any layout of llama is llama: fp32") {
  recipe::Recipe recipe = base("llama");
  recipe.optimizer.name = "sgd";
  check_layouts(recipe, torch::kFloat, 1e-4, 41);
}

// 17 tokens in 16 pieces: some of the 8 ranks have none.
TEST_CASE("context ranks without a token: fp64") {
  for (const char* kind : {"llama", "gpt2"})
    for (const char* way : {"ring", "gather", "ulysses"}) {
      recipe::Recipe recipe = base(kind);
      recipe.parallel.workers = recipe.parallel.context = 8;
      recipe.parallel.context_kind = way;
      if (!legal(recipe)) continue;
      CAPTURE(text_of(recipe));
      const auto [worst, name] =
          difference(train(recipe, 8, torch::kDouble, mesh), alone(recipe, torch::kDouble));
      CAPTURE(name);
      CHECK(worst <= 1e-6);
    }
}

// What a layout is made of, "axis=value".
std::vector<std::string> parts_of(const recipe::Recipe& recipe) {
  const recipe::Parallel& p = recipe.parallel;
  const std::int64_t data = p.workers / recipe::model_ranks(p);
  return {str("workers=", p.workers),
          str("data=", data),
          str("zero=", p.zero),
          str("shard=", p.shard),
          str("tensor=", p.tensor, p.sequence_parallel ? "+sp" : ""),
          str("context=", p.context, p.context_kind),
          str("pipeline=", p.pipeline),
          str("schedule=", p.pipeline_schedule, p.pipeline_chunks),
          str("expert=", p.expert),
          str("expert_tensor=", p.expert_tensor)};
}

// Some of the layouts, in which every two parts that are together in any are together in one.
std::vector<recipe::Recipe> pairwise(const std::vector<recipe::Recipe>& all) {
  std::map<std::string, std::size_t> numbers;
  std::vector<std::vector<std::size_t>> pairs;
  for (const recipe::Recipe& recipe : all) {
    const auto parts = parts_of(recipe);
    pairs.emplace_back();
    for (std::size_t a = 0; a < parts.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        pairs.back().push_back(
            numbers.try_emplace(parts[a] + " " + parts[b], numbers.size()).first->second);
  }
  std::vector<recipe::Recipe> some;
  std::vector<bool> covered(numbers.size());
  for (;;) {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto gain = static_cast<std::size_t>(std::count_if(
          pairs[i].begin(), pairs[i].end(), [&](std::size_t pair) { return !covered[pair]; }));
      if (gain > most) best = i, most = gain;
    }
    if (most == 0) return some;
    some.push_back(all[best]);
    for (const std::size_t pair : pairs[best]) covered[pair] = true;
  }
}

TEST_CASE("pairs of degrees on 9 to 16 ranks: fp64" * doctest::skip(!whole_grid())) {
  for (const char* kind : {"llama", "moe"}) {
    std::vector<recipe::Recipe> all;
    for (int workers = 9; workers <= 16; ++workers)
      for (recipe::Recipe& recipe : layouts_of(base(kind), workers))
        all.push_back(std::move(recipe));
    check_all(pairwise(all), torch::kDouble, 1e-6);
  }
}

// Data ranks, ZeRO and pipelines alone.
TEST_CASE("pipelines have the bits of one device, whatever the schedule, data ranks and ZeRO") {
  std::size_t count = 0, at = 0;
  for (int workers = 2; workers <= 4; ++workers)
    for (recipe::Recipe recipe : layouts_of(base("llama"), workers)) {
      const recipe::Parallel& p = recipe.parallel;
      if (p.tensor > 1 || p.context > 1 || (!whole_grid() && at++ % 5 != 0)) continue;
      ++count;
      CAPTURE(text_of(recipe));
      const auto [worst, name] =
          difference(train(recipe, workers, torch::kFloat, mesh), alone(recipe, torch::kFloat));
      CAPTURE(name);
      CHECK(worst == 0);
    }
  MESSAGE(count << " layouts");
  CHECK(count > 20);
}

}  // namespace
}  // namespace tutti::train
