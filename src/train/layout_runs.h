// What tests of layouts share: a small language model trained in any layout, and what came of it.
#pragma once
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "parallel/engines.h"
#include "parallel/sample_task.h"
#include "plan/layout.h"
#include "plan/layout_rules.h"
#include "train/engine_state.h"
#include "train/language.h"

namespace tutti::train {

using parallel::StateTensor;

inline constexpr std::int64_t sequence = 17;

// CI takes a share of the layouts, with two steps each; TUTTI_GRID=all takes all, with one
// (./dev grid).
inline bool whole_grid() { return std::getenv("TUTTI_GRID") != nullptr; }
inline const std::int64_t steps = whole_grid() ? 1 : 2;

// llama, gpt2 (tied, with dropout), or moe.
inline recipe::Recipe base(const std::string& kind) {
  recipe::Recipe r;
  recipe::Model& m = r.model;
  m.family = kind == "moe" ? "llama" : kind;
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
    if (kind == "moe") {
      m.moe.experts = 7, m.moe.expert_mlp = 10, m.moe.dense_layers = 1, m.moe.shared_experts = 1;
      m.moe.aux_loss = 0.1, m.moe.z_loss = 0.01, m.moe.balance_bias_rate = 0.01;
      m.moe.router = "sigmoid";
    }
  } else {
    m.tied = true;
    m.dropout = 0.2;
  }
  r.model = nn::resolve(m, sequence);
  r.data.sequence = sequence;
  r.batch = {24, 2};
  r.optimizer.clip = 0.05;
  r.parallel.engine = "mesh";
  return r;
}

// Ragged: some rows have few targets, one micro-batch none.
inline parallel::Batch batch_of(std::int64_t step, std::int64_t id) {
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

// Which steps; from which run's checkpoint folder, into which.
struct Stretch {
  std::int64_t first = 0, count = steps;
  fs::path load = {}, save = {};
};

inline void load_engine(const fs::path& folder, std::int64_t step, parallel::Engine& engine) {
  const checkpoint::Loader loader(folder / checkpoint::step_folder_name(step));
  read_state(loader, engine);
  engine.set_scalars(loader.state().at("engine").dump());
}

inline void save_engine(checkpoint::Saver& saver, std::int64_t step, parallel::Engine& engine) {
  const auto state = engine.state();
  saver.save(step, views_of(state), {{"engine", parse_json(engine.scalars(), "engine")}});
  saver.wait();
}

using MakeTask = std::function<std::unique_ptr<LanguageTask>(
    int rank, std::shared_ptr<nn::LanguageModel>, const recipe::Recipe&)>;

// One of the ranks that train together: threads, each with the same small model.
struct Player {
  int rank;
  parallel::Engine& engine;
  LanguageTask& task;
  std::shared_ptr<collective::Group> world;

  torch::Tensor parameter(const std::string& name) const {
    return task.module().named_parameters()[name].detach();
  }
  torch::Tensor buffer(const std::string& name) const {
    return task.module().named_buffers()[name];
  }
  // A tensor of the state, or this rank's first piece of it.
  torch::Tensor state(const std::string& name) const {
    for (const StateTensor& tensor : engine.state())
      if (tensor.name == name) return tensor.value;
    throw WorldError("no state " + name);
  }
  using Change = std::function<void(std::int64_t id, parallel::Batch&)>;
  parallel::StepOutcome step(std::int64_t step, const Change& change = {}) const {
    parallel::StepInput input;
    input.step = step;
    input.lr = 0.02;
    input.batches = [&](std::int64_t id) {
      parallel::Batch batch = batch_of(step, id);
      if (change) change(id, batch);
      return batch;
    };
    return engine.step(input);
  }
};

// body(player) on every rank of recipe.parallel.workers.
inline void play(const recipe::Recipe& recipe, const std::function<void(const Player&)>& body,
                 const MakeTask& make_task = {}, torch::ScalarType type = torch::kFloat) {
  const int ranks = static_cast<int>(recipe.parallel.workers);
  std::vector<std::unique_ptr<LanguageTask>> tasks;
  for (int rank = 0; rank < ranks; ++rank) {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    model->to(type);
    tasks.push_back(make_task ? make_task(rank, model, recipe)
                              : std::make_unique<LanguageTask>(model, recipe));
  }
  std::vector<std::unique_ptr<parallel::Engine>> engines(tasks.size());  // outlive a rank's throw
  parallel::on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& world) {
    at::set_num_threads(1);  // the ranks are threads enough
    const auto at = static_cast<std::size_t>(rank);
    engines[at] = parallel::make_engine(recipe, *tasks[at], world);
    body({rank, *engines[at], *tasks[at], world});
  });
}

inline Run train(const recipe::Recipe& recipe, torch::ScalarType type, const Stretch& stretch = {},
                 const MakeTask& make_task = {}) {
  const int ranks = static_cast<int>(recipe.parallel.workers);
  Run run;
  std::vector<std::vector<StateTensor>> states(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<checkpoint::Saver>> savers;  // before any rank saves
  for (int rank = 0; rank < ranks && !stretch.save.empty(); ++rank)
    savers.push_back(
        std::make_unique<checkpoint::Saver>(stretch.save, rank, ranks, checkpoint::Keep(), 60));
  const auto body = [&](const Player& player) {
    const auto at = static_cast<std::size_t>(player.rank);
    if (!stretch.load.empty()) load_engine(stretch.load, stretch.first, player.engine);
    for (std::int64_t step = stretch.first; step < stretch.first + stretch.count; ++step) {
      const auto outcome = player.step(step);
      if (player.rank == ranks - 1) run.outcomes.push_back(outcome);
    }
    const double loss = player.engine.evaluate(3, [](std::int64_t id) { return batch_of(9, id); });
    if (player.rank == ranks - 1) run.evaluation = loss;
    for (StateTensor tensor : player.engine.state()) {
      tensor.value = tensor.value.clone();
      states[at].push_back(std::move(tensor));
    }
    if (!savers.empty()) save_engine(*savers[at], stretch.first + stretch.count, player.engine);
  };
  play(recipe, body, make_task, type);
  for (StateTensor& tensor : parallel::assemble(states)) run.state[tensor.name] = tensor.value;
  return run;
}

// The same on one device.
inline Run train_alone(recipe::Recipe recipe, torch::ScalarType type, const Stretch& stretch = {}) {
  recipe.parallel = {};
  return train(recipe, type, stretch);
}

inline double relative(double a, double b) { return std::abs(a - b) / (1e-9 + std::abs(b)); }

// The worst relative difference, and of what.
inline std::pair<double, std::string> difference(const Run& a, const Run& b) {
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

inline std::string text_of(const recipe::Recipe& recipe) {
  const recipe::Parallel& p = recipe.parallel;
  return str(recipe.model.family, ": ", p.workers, " workers, zero ", p.zero, ", shard ", p.shard,
             ", tensor ", p.tensor, p.sequence_parallel ? "+sp" : "", ", context ", p.context, " ",
             p.context_kind, ", pipeline ", p.pipeline, " ", p.pipeline_schedule, " x ",
             p.pipeline_chunks, ", expert ", p.expert, " x ", p.expert_tensor, ", rules '", p.rules,
             "', chunks ", p.tensor_chunks, ", buckets ", p.bucket_bytes,
             p.overlap ? ", overlap" : "", p.prefetch ? ", prefetch" : "",
             p.reshard_after_forward ? ", reshard" : "", ", recompute ", recipe.recompute);
}

inline bool legal(const recipe::Recipe& recipe) { return plan::findings(recipe).empty(); }

inline const Run& alone(const recipe::Recipe& recipe, torch::ScalarType type) {
  static std::map<std::string, Run> runs;
  const std::string key =
      str(recipe.model.family, recipe.model.moe.experts, recipe.optimizer.name, int(type));
  if (!runs.contains(key)) runs[key] = train_alone(recipe, type);
  return runs[key];
}

// Every layout of `workers` ranks that make_layout takes.
inline std::vector<recipe::Recipe> layouts_of(recipe::Recipe recipe, int workers) {
  std::vector<recipe::Recipe> all;
  recipe::Parallel& p = recipe.parallel;
  p.workers = workers;
  const auto add = [&] {
    if (legal(recipe)) all.push_back(recipe);
  };
  const auto with_experts = [&] {
    for (p.expert = 1; p.expert <= workers; ++p.expert)
      for (p.expert_tensor = 1; p.expert * p.expert_tensor <= workers; ++p.expert_tensor) add();
    p.expert = p.expert_tensor = 1;
  };
  const bool moe = recipe.model.moe.experts > 0;
  const auto with_zero = [&] {
    for (p.zero = 0; p.zero <= 3; ++p.zero)
      for (p.shard = 0; p.shard <= (moe ? 2 : workers / 2); p.shard += p.shard ? p.shard : 2)
        with_experts();
    p.zero = p.shard = 0;
  };
  const auto with_context = [&] {
    for (const char* kind : {"ring", "gather", "ulysses", "mixed"}) {
      if (p.context == 1 && kind != std::string("ring")) break;
      p.context_kind = kind;
      p.ulysses = kind == std::string("mixed") ? 2 : 0;
      with_zero();
    }
    p.context_kind = "ring";
    p.ulysses = 0;
  };
  const auto with_schedule = [&] {
    for (const std::string& kind : plan::pipeline_kinds())
      for (p.pipeline_chunks = 1; p.pipeline_chunks <= 2; ++p.pipeline_chunks) {
        if (p.pipeline == 1 && (kind != "1f1b" || p.pipeline_chunks > 1)) continue;
        p.pipeline_schedule = kind;
        with_context();
      }
    p.pipeline_schedule = "1f1b";
    p.pipeline_chunks = 1;
  };
  for (p.pipeline = 1; p.pipeline <= workers; ++p.pipeline)
    for (p.context = 1; p.context <= workers / p.pipeline; ++p.context)
      for (p.tensor = 1; p.tensor <= workers / p.pipeline / p.context; ++p.tensor) {
        if (workers % (p.pipeline * p.context * p.tensor)) continue;
        for (const bool sequence_parallel : {true, false}) {
          p.sequence_parallel = sequence_parallel;
          if (sequence_parallel || p.tensor > 1) with_schedule();
        }
        p.sequence_parallel = true;
      }
  return all;
}

}  // namespace tutti::train
