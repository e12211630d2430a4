// For tests that look at ranks while they train: threads as ranks, each with a small language model
// in a layout.
#pragma once
#include <ATen/Parallel.h>

#include <functional>
#include <memory>
#include <vector>

#include "parallel/engines.h"
#include "train/layout_runs.h"

namespace tutti::train {

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

using MakeTask = std::function<std::unique_ptr<LanguageTask>(
    int rank, std::shared_ptr<nn::LanguageModel>, const recipe::Recipe&)>;

// body(player) on every rank of recipe.parallel.workers.
inline void play(const recipe::Recipe& recipe, const std::function<void(const Player&)>& body,
                 const MakeTask& make_task = {}, torch::ScalarType type = torch::kFloat) {
  const int ranks = static_cast<int>(recipe.parallel.workers);
  std::vector<std::unique_ptr<LanguageTask>> tasks;
  for (int rank = 0; rank < ranks; ++rank) {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    for (auto& p : model->parameters()) p.set_data(p.detach().to(type));
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

}  // namespace tutti::train
