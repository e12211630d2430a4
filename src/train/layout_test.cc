// A language model trained in a layout is the model trained on one device: losses, norms, weights
// and optimizer state after some steps, in fp64; bit for bit in fp32 where only data ranks, ZeRO
// stages and pipelines differ.
#include <doctest/doctest.h>

#include <iostream>

#include "train/layout_runs.h"

namespace tutti::train {
namespace {

void check_layouts(const recipe::Recipe& model, torch::ScalarType type, double tolerance, int least,
                   int most, std::size_t every) {
  std::size_t count = 0, skipped = every / 2;
  double worst_of_all = 0;
  for (int workers = least; workers <= most; ++workers)
    for (const recipe::Recipe& recipe : layouts_of(model, workers)) {
      if (!whole_grid() && skipped++ % every != 0) continue;
      CAPTURE(text_of(recipe));
      if (std::getenv("TUTTI_GRID_TRACE")) std::cerr << text_of(recipe) << std::endl;
      ++count;
      const auto [worst, name] =
          difference(train(recipe, workers, type, mesh), alone(recipe, type));
      CAPTURE(name);
      CHECK(worst <= tolerance);
      worst_of_all = std::max(worst_of_all, worst);
    }
  MESSAGE(model.model.family << ": " << count << " layouts, worst difference " << worst_of_all);
  CHECK(count > 5);
}

TEST_CASE("any layout of llama is llama: fp64") {
  check_layouts(base("llama"), torch::kDouble, 1e-6, 2, whole_grid() ? 8 : 4, 31);
}

TEST_CASE("any layout of a tied gpt2 with dropout is gpt2: fp64") {
  check_layouts(base("gpt2"), torch::kDouble, 1e-6, 2, whole_grid() ? 8 : 4, 29);
}

// Experts that no rank shares out or cuts are among them.
TEST_CASE("any layout of a mixture of experts is that mixture: fp64") {
  check_layouts(base("moe"), torch::kDouble, 1e-6, 2, whole_grid() ? 8 : 4, 71);
}

// By sgd: adamw divides gradients that are all rounding by their own size.
TEST_CASE("any layout of llama is llama: fp32") {
  recipe::Recipe recipe = base("llama");
  recipe.optimizer.name = "sgd";
  check_layouts(recipe, torch::kFloat, 1e-4, 2, whole_grid() ? 8 : 4, 41);
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
