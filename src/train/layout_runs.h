// What tests of layouts share: a small language model trained in any layout, and what came of it.
#pragma once
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "parallel/mesh_engine.h"
#include "parallel/replicated.h"
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

using Make = parallel::MakeEngine;

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

inline Run train(const recipe::Recipe& recipe, int ranks, torch::ScalarType type, const Make& make,
                 const Stretch& stretch = {}) {
  Run run;
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
    at::set_num_threads(1);  // the ranks are threads enough
    const auto at = static_cast<std::size_t>(rank);
    std::unique_ptr<checkpoint::Saver> saver;  // before any rank saves
    if (!stretch.save.empty())
      saver =
          std::make_unique<checkpoint::Saver>(stretch.save, rank, ranks, checkpoint::Keep(), 60);
    auto& engine = engines[at];
    engine = make(recipe, *tasks[at], group);
    if (!stretch.load.empty()) load_engine(stretch.load, stretch.first, *engine);
    for (std::int64_t step = stretch.first; step < stretch.first + stretch.count; ++step) {
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
    if (saver) save_engine(*saver, stretch.first + stretch.count, *engine);
  });
  for (StateTensor& tensor : parallel::assemble(states)) run.state[tensor.name] = tensor.value;
  return run;
}

inline std::unique_ptr<parallel::Engine> replicated(const recipe::Recipe& recipe,
                                                    parallel::Task& task,
                                                    std::shared_ptr<collective::Group> group) {
  return std::make_unique<parallel::ReplicatedEngine>(recipe, task, std::move(group));
}

inline std::unique_ptr<parallel::Engine> mesh(const recipe::Recipe& recipe, parallel::Task& task,
                                              std::shared_ptr<collective::Group> group) {
  return std::make_unique<parallel::MeshEngine>(recipe, task, plan::make_layout(recipe),
                                                std::move(group));
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
             p.pipeline_chunks, ", expert ", p.expert, " x ", p.expert_tensor);
}

inline bool legal(const recipe::Recipe& recipe) { return plan::findings(recipe).empty(); }

inline const Run& alone(const recipe::Recipe& recipe, torch::ScalarType type) {
  static std::map<std::string, Run> runs;
  const std::string key =
      str(recipe.model.family, recipe.model.moe.experts, recipe.optimizer.name, int(type));
  if (!runs.contains(key)) {
    recipe::Recipe one = recipe;
    one.parallel = {};
    runs[key] = train(one, 1, type, replicated);
  }
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
