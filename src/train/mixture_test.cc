// A mixture of experts trained in a layout is the one trained on one device: weights, the routers'
// biases, and what they know of the load. Bit for bit where only data ranks, ZeRO stages and
// pipelines differ.
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

// Dots1-like, so that all that follows the counts does.
recipe::Recipe mixture() {
  recipe::Recipe r = base("moe");
  recipe::Model m = r.model;
  m.layers = 3, m.heads = 4, m.kv_heads = 2;
  m.moe.experts = 6, m.moe.aux_scope = "global", m.moe.capacity_factor = 1.1;
  r.model = nn::resolve(m, sequence);
  r.batch = {8, 2};
  return r;
}

// Tells the choices of the last step, by layers with experts.
struct Watched : LanguageTask {
  Watched(std::shared_ptr<nn::LanguageModel> model, const recipe::Recipe& recipe,
          torch::Tensor& told)
      : LanguageTask(std::move(model), recipe), choices(told) {}
  void counted(const torch::Tensor& sum) override {
    choices = sum.sum(1);
    LanguageTask::counted(sum);
  }
  torch::Tensor& choices;
};

// Every token with a target has made its choices once, wherever it was.
Run train_watched(const recipe::Recipe& recipe, torch::ScalarType type) {
  std::vector<torch::Tensor> choices(static_cast<std::size_t>(recipe.parallel.workers));
  const Run run = train(recipe, type, {}, [&](int rank, auto model, const recipe::Recipe& r) {
    return std::make_unique<Watched>(model, r, choices[static_cast<std::size_t>(rank)]);
  });
  const auto expected =
      static_cast<std::int64_t>(run.outcomes.back().count) * recipe.model.moe.experts_per_token;
  for (const torch::Tensor& told : choices)
    CHECK(told.equal(torch::full({2}, expected, torch::kLong)));
  return run;
}

struct Degrees {
  int data = 1, zero = 0, pipeline = 1, tensor = 1, context = 1;
  bool sequence_parallel = false;
  int expert = 1, expert_tensor = 1, shard = 0;
};

recipe::Recipe spread(const Degrees& d) {
  recipe::Recipe r = mixture();
  r.parallel.workers = d.data * d.pipeline * d.tensor * d.context;
  r.parallel.zero = d.zero, r.parallel.pipeline = d.pipeline, r.parallel.tensor = d.tensor;
  r.parallel.context = d.context, r.parallel.sequence_parallel = d.sequence_parallel;
  r.parallel.expert = d.expert, r.parallel.expert_tensor = d.expert_tensor;
  r.parallel.shard = d.shard;
  return r;
}

void check(const Degrees& degrees, torch::ScalarType type, double tolerance) {
  const recipe::Recipe recipe = spread(degrees);
  CAPTURE(text_of(recipe));
  recipe::Recipe one = mixture();
  one.parallel = {};
  const auto [worst, name] = difference(train_watched(recipe, type), train_watched(one, type));
  CAPTURE(name);
  CHECK(worst <= tolerance);
}

TEST_CASE("mixtures: data ranks, ZeRO and pipelines change no bit of weights, biases and loads") {
  check({.data = 2}, torch::kFloat, 0);
  check({.data = 2, .zero = 3}, torch::kFloat, 0);
  check({.pipeline = 2}, torch::kFloat, 0);
  check({.data = 2, .zero = 1, .pipeline = 2}, torch::kFloat, 0);
}

TEST_CASE("mixtures: tensor, sequence and context ranks train the same model") {
  check({.tensor = 2}, torch::kDouble, 1e-9);
  check({.tensor = 2, .sequence_parallel = true}, torch::kDouble, 1e-9);
  check({.context = 2}, torch::kDouble, 1e-9);
}

// Of 6 experts: runs of 3, of 2, and 2 2 2 0; over data, tensor and context ranks.
TEST_CASE("mixtures: experts dealt over ranks and cut over them train the same model") {
  check({.data = 2, .expert = 2}, torch::kDouble, 1e-9);
  check({.data = 2, .expert_tensor = 2}, torch::kDouble, 1e-9);
  check({.data = 4, .expert = 4}, torch::kDouble, 1e-9);
  check({.data = 4, .zero = 1, .expert = 2}, torch::kDouble, 1e-9);
  check({.data = 4, .zero = 2, .expert = 2}, torch::kDouble, 1e-9);
  check({.data = 4, .zero = 3, .expert_tensor = 2}, torch::kDouble, 1e-9);
  check({.data = 4, .zero = 3, .expert = 2, .shard = 2}, torch::kDouble, 1e-9);
  check({.data = 2, .pipeline = 2, .expert = 2}, torch::kDouble, 1e-9);
  check({.tensor = 2, .sequence_parallel = true, .expert = 2}, torch::kDouble, 1e-9);
  check({.tensor = 2, .expert_tensor = 2}, torch::kDouble, 1e-9);
  check({.data = 2, .zero = 1, .context = 2, .expert = 2}, torch::kDouble, 1e-9);
  check({.data = 2,
         .zero = 2,
         .tensor = 2,
         .sequence_parallel = true,
         .expert = 2,
         .expert_tensor = 2},
        torch::kDouble, 1e-9);
}

// Their parameters apart have no matrix that Muon would orthogonalise.
TEST_CASE("mixtures: by muon, experts that ranks share are the same") {
  recipe::Recipe recipe = mixture();
  recipe.optimizer.name = "muon";
  recipe.parallel.workers = 4, recipe.parallel.zero = 1, recipe.parallel.expert = 2;
  const auto [worst, name] =
      difference(train(recipe, torch::kDouble), train_alone(recipe, torch::kDouble));
  CAPTURE(name);
  CHECK(worst < 1e-6);
}

TEST_CASE("mixtures: the counts of a step move biases by the rate and leave the load behind") {
  const auto state = train(mixture(), torch::kFloat, {0, 3}).state;  // an odd number of moves
  for (const int layer : {1, 2}) {
    const std::string router = str("model/model.layers.", layer, ".mlp.router.");
    const torch::Tensor bias = state.at(router + "bias") / 0.01;
    CHECK(bias.abs().max().item<double>() > 0.5);
    CHECK(torch::allclose(bias, bias.round(), 0, 1e-4));
    const torch::Tensor load = state.at(router + "load");
    CHECK(load.sum().item<double>() == doctest::Approx(2));
    CHECK(load.std().item<double>() > 1e-3);
  }
}

}  // namespace
}  // namespace tutti::train
