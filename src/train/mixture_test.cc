// A mixture of experts trained in a layout is the one trained on one device: weights, the routers'
// biases, and what they know of the load. Bit for bit where only data ranks, ZeRO stages and
// pipelines differ.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <random>

#include "base/error.h"
#include "parallel/mesh_engine.h"
#include "parallel/replicated.h"
#include "parallel/sample_task.h"
#include "plan/layout.h"
#include "train/language.h"

namespace tutti::train {
namespace {

constexpr std::int64_t sequence = 12;

// Dots1-like, so that all that follows the counts does.
recipe::Recipe base() {
  recipe::Recipe r;
  recipe::Model& m = r.model;
  m.vocab = 37, m.layers = 3, m.embed = 24, m.heads = 4, m.mlp = 22;
  m.moe.experts = 6, m.moe.expert_mlp = 10, m.moe.dense_layers = 1, m.moe.shared_experts = 1;
  m.moe.router = "sigmoid", m.moe.balance_bias_rate = 0.01;
  m.moe.aux_loss = 0.1, m.moe.aux_scope = "global", m.moe.z_loss = 0.01;
  m.moe.capacity_factor = 1.1;
  r.model = nn::resolve(m, sequence);
  r.data.sequence = sequence;
  r.batch = {8, 2};
  r.parallel.engine = "mesh";
  return r;
}

parallel::Batch batch_of(std::int64_t step, std::int64_t id) {
  std::mt19937 random(static_cast<unsigned>(step * 100 + id));
  const auto tokens = [&] {
    torch::Tensor t = torch::empty({2, sequence}, torch::kLong);
    for (std::int64_t i = 0; i < t.numel(); ++i)
      t.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random() % 37);
    return t;
  };
  torch::Tensor inputs = tokens(), targets = tokens();
  targets.narrow(1, 3, id).fill_(-1);
  return {inputs, targets};
}

// 2 choices of each token with a target, of the last step.
struct Watched : LanguageTask {
  using LanguageTask::LanguageTask;
  void counted(const torch::Tensor& sum) override {
    choices = sum.sum(1);
    LanguageTask::counted(sum);
  }
  torch::Tensor choices;
};

using State = std::map<std::string, torch::Tensor>;

// The state after three steps.
State train(const recipe::Recipe& recipe, torch::ScalarType type, bool mesh) {
  const int ranks = static_cast<int>(recipe.parallel.workers);
  std::vector<std::vector<parallel::StateTensor>> states(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<Watched>> tasks;
  for (int rank = 0; rank < ranks; ++rank) {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    for (auto& p : model->parameters()) p.set_data(p.detach().to(type));
    tasks.push_back(std::make_unique<Watched>(model, recipe));
  }
  std::vector<std::unique_ptr<parallel::Engine>> engines(tasks.size());
  parallel::on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
    at::set_num_threads(1);  // the ranks are threads enough
    const auto at = static_cast<std::size_t>(rank);
    auto& engine = engines[at];
    if (mesh)
      engine = std::make_unique<parallel::MeshEngine>(recipe, *tasks[at], plan::make_layout(recipe),
                                                      group);
    else
      engine = std::make_unique<parallel::ReplicatedEngine>(recipe, *tasks[at], group);
    for (int step = 0; step < 3; ++step) {
      parallel::StepInput input;
      input.step = step;
      input.lr = 0.02;
      input.batches = [step](std::int64_t id) { return batch_of(step, id); };
      engine->step(input);
    }
    for (parallel::StateTensor tensor : engine->state()) {
      tensor.value = tensor.value.clone();
      states[at].push_back(std::move(tensor));
    }
  });
  for (const auto& task : tasks)
    CHECK(task->choices.equal(torch::full({2}, 2 * 2 * (12 + 11 + 10 + 9), torch::kLong)));
  State state;
  for (auto& tensor : parallel::assemble(states)) state[tensor.name] = tensor.value;
  return state;
}

std::pair<double, std::string> difference(const State& a, const State& b) {
  REQUIRE(a.size() == b.size());
  std::pair<double, std::string> worst{0, ""};
  for (const auto& [name, value] : b) {
    const double d = (a.at(name) - value).abs().max().item<double>() /
                     (1e-12 + value.abs().max().item<double>());
    if (!(d <= worst.first)) worst = {d, name};
  }
  return worst;
}

struct Degrees {
  int data = 1, zero = 0, pipeline = 1, tensor = 1, context = 1;
  bool sequence_parallel = false;
  int expert = 1, expert_tensor = 1, shard = 0;
};

recipe::Recipe spread(const Degrees& d) {
  recipe::Recipe r = base();
  r.parallel.workers = d.data * d.pipeline * d.tensor * d.context;
  r.parallel.zero = d.zero, r.parallel.pipeline = d.pipeline, r.parallel.tensor = d.tensor;
  r.parallel.context = d.context, r.parallel.sequence_parallel = d.sequence_parallel;
  r.parallel.expert = d.expert, r.parallel.expert_tensor = d.expert_tensor;
  r.parallel.shard = d.shard;
  return r;
}

void check(const Degrees& degrees, torch::ScalarType type, bool mesh, double tolerance) {
  CAPTURE(degrees.data);
  CAPTURE(degrees.zero);
  CAPTURE(degrees.pipeline);
  CAPTURE(degrees.tensor);
  CAPTURE(degrees.context);
  CAPTURE(degrees.expert);
  CAPTURE(degrees.expert_tensor);
  const State alone = train(base(), type, false);
  const auto [worst, name] = difference(train(spread(degrees), type, mesh), alone);
  CAPTURE(name);
  CHECK(worst <= tolerance);
}

TEST_CASE("mixtures: data ranks, ZeRO and pipelines change no bit of weights, biases and loads") {
  check({.data = 2}, torch::kFloat, false, 0);
  check({.data = 2}, torch::kFloat, true, 0);
  check({.data = 2, .zero = 3}, torch::kFloat, true, 0);
  check({.pipeline = 2}, torch::kFloat, true, 0);
  check({.data = 2, .zero = 1, .pipeline = 2}, torch::kFloat, true, 0);
}

TEST_CASE("mixtures: tensor, sequence and context ranks train the same model") {
  check({.tensor = 2}, torch::kDouble, true, 1e-9);
  check({.tensor = 2, .sequence_parallel = true}, torch::kDouble, true, 1e-9);
  check({.context = 2}, torch::kDouble, true, 1e-9);
}

// Of 6 experts: runs of 3, of 2, and 2 2 2 0; over data, tensor and context ranks.
TEST_CASE("mixtures: experts dealt over ranks and cut over them train the same model") {
  check({.data = 2, .expert = 2}, torch::kDouble, true, 1e-9);
  check({.data = 2, .expert_tensor = 2}, torch::kDouble, true, 1e-9);
  check({.data = 4, .expert = 4}, torch::kDouble, true, 1e-9);
  check({.data = 4, .zero = 1, .expert = 2}, torch::kDouble, true, 1e-9);
  check({.data = 4, .zero = 2, .expert = 2}, torch::kDouble, true, 1e-9);
  check({.data = 4, .zero = 3, .expert_tensor = 2}, torch::kDouble, true, 1e-9);
  check({.data = 4, .zero = 3, .expert = 2, .shard = 2}, torch::kDouble, true, 1e-9);
  check({.data = 2, .pipeline = 2, .expert = 2}, torch::kDouble, true, 1e-9);
  check({.tensor = 2, .sequence_parallel = true, .expert = 2}, torch::kDouble, true, 1e-9);
  check({.tensor = 2, .expert_tensor = 2}, torch::kDouble, true, 1e-9);
  check({.data = 2, .zero = 1, .context = 2, .expert = 2}, torch::kDouble, true, 1e-9);
  check({.data = 2,
         .zero = 2,
         .tensor = 2,
         .sequence_parallel = true,
         .expert = 2,
         .expert_tensor = 2},
        torch::kDouble, true, 1e-9);
}

TEST_CASE("mixtures: the counts of a step move biases by the rate and leave the load behind") {
  for (const bool mesh : {false, true}) {
    const State state = train(base(), torch::kFloat, mesh);
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
}

}  // namespace
}  // namespace tutti::train
