// A language model trained in a layout is the model trained on one device: losses, norms, weights
// and optimizer state after some steps, in fp64; bit for bit in fp32 where only data ranks, ZeRO
// stages and pipelines differ.
#include <doctest/doctest.h>

#include <mutex>
#include <random>

#include "base/error.h"
#include "parallel/mesh_engine.h"
#include "parallel/replicated.h"
#include "parallel/sample_task.h"
#include "plan/layout.h"
#include "train/language.h"

namespace tutti::train {
namespace {

using parallel::StateTensor;

constexpr std::int64_t sequence = 17, steps = 2;

recipe::Recipe base(const char* family) {
  recipe::Recipe r;
  recipe::Model& m = r.model;
  m.family = family;
  m.vocab = 37;  // divisible by nothing
  m.layers = 5;
  m.embed = 24;
  m.heads = 8;
  m.mlp = 22;
  m.context = sequence;
  if (m.family == "llama") {
    m.kv_heads = 4;
    m.head_dim = 6;
    m.qk_norm = m.qkv_bias = true;
  } else {
    m.tied = true;
    m.dropout = 0.2;
  }
  r.model = nn::resolve(m, sequence);
  r.data.sequence = sequence;
  r.batch = {16, 2};
  r.optimizer.clip = 0.05;
  r.parallel.engine = "mesh";
  return r;
}

// Ragged: some rows have few targets, one micro-batch none.
parallel::Batch batch_of(std::int64_t step, std::int64_t id) {
  std::mt19937 random(static_cast<unsigned>(step * 100 + id));
  const auto tokens = [&] {
    torch::Tensor t = torch::empty({2, sequence}, torch::kLong);
    for (std::int64_t i = 0; i < t.numel(); ++i)
      t.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random() % 37);
    return t;
  };
  torch::Tensor inputs = tokens(), targets = tokens();
  targets.narrow(1, 3, id % 14).fill_(-1);
  if (id == 5) targets.fill_(-1);
  torch::Tensor documents = torch::zeros({2, sequence}, torch::kInt);
  documents[0].narrow(0, 4 + id % 7, sequence - 4 - id % 7).fill_(1);
  return {inputs, targets, documents};
}

struct Run {
  std::vector<parallel::StepOutcome> outcomes;
  double evaluation = 0;
  std::map<std::string, torch::Tensor> state;
};

using Make = parallel::MakeEngine;

Run train(const recipe::Recipe& recipe, int ranks, torch::ScalarType type, const Make& make) {
  Run run;
  std::mutex mutex;
  std::vector<std::vector<StateTensor>> states(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<LanguageTask>> tasks;
  for (int rank = 0; rank < ranks; ++rank) {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    model->to(type);
    tasks.push_back(std::make_unique<LanguageTask>(model, recipe));
  }
  std::vector<std::unique_ptr<parallel::Engine>> engines(tasks.size());
  parallel::on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
    const auto at = static_cast<std::size_t>(rank);
    auto& engine = engines[at];
    engine = make(recipe, *tasks[at], group);
    for (std::int64_t step = 0; step < steps; ++step) {
      parallel::StepInput input;
      input.step = step;
      input.lr = 0.02;
      input.batches = [step](std::int64_t id) { return batch_of(step, id); };
      const auto outcome = engine->step(input);
      if (rank == ranks - 1) run.outcomes.push_back(outcome);
    }
    const double loss = engine->evaluate(3, [](std::int64_t id) { return batch_of(9, id); });
    if (rank == ranks - 1) run.evaluation = loss;
    for (StateTensor tensor : engine->state()) {
      tensor.value = tensor.value.clone();
      states[at].push_back(std::move(tensor));
    }
  });
  for (StateTensor& tensor : parallel::assemble(states)) run.state[tensor.name] = tensor.value;
  return run;
}

std::unique_ptr<parallel::Engine> replicated(const recipe::Recipe& recipe, parallel::Task& task,
                                             std::shared_ptr<collective::Group> group) {
  return std::make_unique<parallel::ReplicatedEngine>(recipe, task, std::move(group));
}

std::unique_ptr<parallel::Engine> mesh(const recipe::Recipe& recipe, parallel::Task& task,
                                       std::shared_ptr<collective::Group> group) {
  return std::make_unique<parallel::MeshEngine>(recipe, task, plan::make_layout(recipe),
                                                std::move(group));
}

double relative(double a, double b) { return std::abs(a - b) / (1e-9 + std::abs(b)); }

// The worst relative difference, and of what.
std::pair<double, std::string> difference(const Run& a, const Run& b) {
  std::pair<double, std::string> worst{0, ""};
  const auto note = [&](double d, const std::string& name) {
    if (!(d <= worst.first)) worst = {d, name};
  };
  for (std::size_t i = 0; i < b.outcomes.size(); ++i) {
    note(relative(a.outcomes[i].loss, b.outcomes[i].loss), "loss");
    note(relative(a.outcomes[i].grad_norm, b.outcomes[i].grad_norm), "norm");
    note(relative(a.outcomes[i].count, b.outcomes[i].count), "count");
  }
  note(relative(a.evaluation, b.evaluation), "evaluation");
  for (const auto& [name, value] : b.state) {
    const torch::Tensor& other = a.state.at(name);
    const double scale = value.abs().max().item<double>();
    note((other - value).abs().max().item<double>() / (1e-12 + scale), name);
  }
  CHECK(a.state.size() == b.state.size());
  return worst;
}

std::string text_of(const recipe::Recipe& recipe) {
  const recipe::Parallel& p = recipe.parallel;
  return str(recipe.model.family, ": ", p.workers, " workers, zero ", p.zero, ", shard ", p.shard,
             ", tensor ", p.tensor, p.sequence_parallel ? "+sp" : "", ", context ", p.context, " ",
             p.context_kind, ", pipeline ", p.pipeline, " ", p.pipeline_schedule, " x ",
             p.pipeline_chunks);
}

bool legal(const recipe::Recipe& recipe) { return plan::layout_violations(recipe).empty(); }

const Run& alone(const recipe::Recipe& recipe, torch::ScalarType type) {
  static std::map<std::string, Run> runs;
  const std::string key = str(recipe.model.family, recipe.model.tied, int(type));
  if (!runs.contains(key)) {
    recipe::Recipe one = recipe;
    one.parallel = {};
    runs[key] = train(one, 1, type, replicated);
  }
  return runs[key];
}

TEST_CASE("pipelines have the bits of one device, whatever the schedule, data ranks and ZeRO") {
  recipe::Recipe recipe = base("llama");
  int count = 0;
  for (const std::string& kind : plan::pipeline_kinds())
    for (const int pipeline : {1, 2, 3})
      for (const int chunks : {1, 2})
        for (const int data : {1, 2})
          for (const int zero : {0, 1, 2}) {
            recipe.parallel.workers = pipeline * data;
            recipe.parallel.pipeline = pipeline;
            recipe.parallel.pipeline_schedule = kind;
            recipe.parallel.pipeline_chunks = chunks;
            recipe.parallel.zero = zero;
            if (!legal(recipe)) continue;
            CAPTURE(text_of(recipe));
            ++count;
            const auto [worst, name] = difference(
                train(recipe, static_cast<int>(recipe.parallel.workers), torch::kFloat, mesh),
                alone(recipe, torch::kFloat));
            CAPTURE(name);
            CHECK(worst == 0);
          }
  MESSAGE(count << " layouts");
  CHECK(count > 20);
}

}  // namespace
}  // namespace tutti::train
