// A language model trained in a layout is the model trained on one device: losses, norms, weights
// and optimizer state after some steps, in fp64; bit for bit in fp32 where only data ranks, ZeRO
// stages and pipelines differ.
#include <doctest/doctest.h>

#include <algorithm>
#include <iostream>

#include "parallel/mesh_engine.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

void check_all(const std::vector<recipe::Recipe>& layouts, torch::ScalarType type,
               double tolerance) {
  double worst_of_all = 0;
  for (const recipe::Recipe& recipe : layouts) {
    CAPTURE(text_of(recipe));
    if (std::getenv("TUTTI_GRID_TRACE")) std::cerr << text_of(recipe) << std::endl;
    const auto [worst, name] = difference(train(recipe, type), alone(recipe, type));
    CAPTURE(name);
    CHECK(worst <= tolerance);
    worst_of_all = std::max(worst_of_all, worst);
  }
  CHECK(layouts.size() > 2);
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
TEST_CASE("context ranks without a token") {
  for (const char* kind : {"llama", "gpt2"})
    for (const char* way : {"ring", "gather", "ulysses"})
      for (const auto type : {torch::kDouble, torch::kFloat}) {
        recipe::Recipe recipe = base(kind);
        recipe.parallel.workers = recipe.parallel.context = 8;
        recipe.parallel.context_kind = way;
        recipe.optimizer.name = "sgd";
        if (!legal(recipe)) continue;
        CAPTURE(text_of(recipe));
        const auto [worst, name] = difference(train(recipe, type), alone(recipe, type));
        CAPTURE(name);
        CHECK(worst <= (type == torch::kDouble ? 1e-6 : 1e-4));
      }
}

// 11 rows of an MLP on 2 ranks: if those ended buckets at other parameters, they would sum others.
TEST_CASE("tensor ranks with parts of other sizes sum the same gradients together") {
  recipe::Recipe recipe = base("llama");
  recipe.model.mlp = 11;
  recipe.parallel.workers = 4, recipe.parallel.tensor = 2;
  for (const std::int64_t zero : {0, 2})
    for (std::int64_t bytes = 512; bytes <= 16384; bytes += bytes / 2) {
      recipe.parallel.zero = zero;
      recipe.parallel.bucket_bytes = bytes;
      recipe.reproducible = zero > 0;
      static const Run expected = train_alone(recipe, torch::kDouble);
      CAPTURE(text_of(recipe));
      const auto [worst, name] = difference(train(recipe, torch::kDouble), expected);
      CAPTURE(name);
      CHECK(worst <= 1e-6);
    }
}

// A rule that the plan would refuse, so that GPT-2's positions are cut though nothing asks for it.
TEST_CASE("what takes a cut parameter for the whole one is refused") {
  recipe::Recipe recipe = base("gpt2");
  recipe.parallel.workers = recipe.parallel.tensor = 2;
  plan::Layout layout = plan::make_layout(recipe);
  layout.rules["position"] = "tensor";
  recipe.model.context = 4 * sequence;  // or its rows would not be enough
  std::unique_ptr<LanguageTask> tasks[2];
  std::unique_ptr<parallel::MeshEngine> engines[2];
  const auto body = [&](int rank, const std::shared_ptr<collective::Group>& group) {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    tasks[rank] = std::make_unique<LanguageTask>(model, recipe);
    engines[rank] = std::make_unique<parallel::MeshEngine>(recipe, *tasks[rank], layout, group);
    parallel::StepInput input;
    input.lr = 0.02;
    input.batches = [](std::int64_t id) { return batch_of(0, id); };
    engines[rank]->step(input);
  };
  CHECK_THROWS_WITH(parallel::on_ranks(2, body),
                    doctest::Contains("cuts transformer.wpe.weight along dimension 0, but what the "
                                      "model computes with it does not ask how it is cut"));
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
          str("expert_tensor=", p.expert_tensor),
          str("rules=", p.rules),
          str("chunks=", p.tensor_chunks),
          str("units=", p.prefetch, p.reshard_after_forward),
          str("buckets=", p.bucket_bytes, p.overlap),
          str("recompute=", recipe.recompute)};
}

// One value of every option that changes how a layout computes and not what.
void draw_options(recipe::Recipe& recipe, std::mt19937& random) {
  recipe::Parallel& p = recipe.parallel;
  const auto one_of = [&](const std::vector<std::string>& values) {
    return values[random() % values.size()];
  };
  const std::string heads =
      recipe.model.family == "gpt2" ? "heads=none qkv=none" : "heads=none kv_heads=none";
  p.rules = p.tensor == 1 ? "" : one_of({"", "vocab=none", "mlp=none", heads, heads + " mlp=none"});
  p.tensor_chunks = p.tensor == 1 ? 1 : 1 + static_cast<std::int64_t>(random() % 3);
  if (p.zero == 3) p.prefetch = random() % 2, p.reshard_after_forward = random() % 2;
  p.overlap = random() % 2;
  p.bucket_bytes = random() % 2 ? 2048 : 4 << 20;
  recipe.recompute = one_of({"none", "selective", "full"});
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

// Every two values of degrees and options that can be together, in fp64 and by sgd in fp32. CI
// takes one in nine of them, by turns in one of the two.
TEST_CASE("any layout with any options is the model") {
  for (const std::string kind : {"llama", "gpt2", "moe"}) {
    std::mt19937 random(5);
    std::vector<recipe::Recipe> all;
    for (int workers = 2; workers <= (whole_grid() ? 8 : 4); ++workers)
      for (const recipe::Recipe& recipe : layouts_of(base(kind), workers))
        for (int draw = 0; draw < 2; ++draw) {
          all.push_back(recipe);
          draw_options(all.back(), random);
          if (!legal(all.back())) all.pop_back();
        }
    std::vector<recipe::Recipe> wide, narrow;
    std::size_t at = 0;
    for (recipe::Recipe& recipe : pairwise(all)) {
      const bool here = whole_grid() || at++ % 9 == 4;
      if (here && (whole_grid() || at % 2)) wide.push_back(recipe);
      recipe.optimizer.name = "sgd";
      if (here && (whole_grid() || at % 2 == 0)) narrow.push_back(recipe);
    }
    check_all(wide, torch::kDouble, 1e-6);
    check_all(narrow, torch::kFloat, 1e-4);
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
          difference(train(recipe, torch::kFloat), alone(recipe, torch::kFloat));
      CAPTURE(name);
      CHECK(worst == 0);
    }
  MESSAGE(count << " layouts");
  CHECK(count > 20);
}

}  // namespace
}  // namespace tutti::train
