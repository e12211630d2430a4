// An engine that the library does not know: registered by a program, chosen by its recipe.
#include <doctest/doctest.h>

#include <atomic>

#include "base/error.h"
#include "base/fs.h"
#include "parallel/engines.h"
#include "parallel/sample_task.h"
#include "recipe/parse.h"
#include "train/fit.h"

namespace tutti::train {
namespace {

// Copies, with its steps counted.
class Counting : public parallel::Engine {
 public:
  Counting(const recipe::Recipe& recipe, parallel::Task& task,
           std::shared_ptr<collective::Group> world) {
    recipe::Recipe copies = recipe;
    copies.parallel.engine = "replicated";
    engine_ = parallel::make_engine(copies, task, std::move(world));
  }
  parallel::StepOutcome step(const parallel::StepInput& input) override {
    ++steps;
    return engine_->step(input);
  }
  std::int64_t parameter_count() const override { return engine_->parameter_count(); }
  double evaluate(std::int64_t count, const parallel::BatchSource& batches) override {
    return engine_->evaluate(count, batches);
  }
  std::int64_t agree(std::int64_t value) override { return engine_->agree(value); }
  std::vector<parallel::StateTensor> state() override { return engine_->state(); }
  void restored() override { engine_->restored(); }
  std::string scalars() const override { return engine_->scalars(); }
  void set_scalars(const std::string& json) override { engine_->set_scalars(json); }

  static inline std::atomic<int> steps = 0;  // of all ranks

 private:
  std::unique_ptr<parallel::Engine> engine_;
};

recipe::Recipe read(const std::string& engine) {
  return recipe::parse(
             "data: {train: a.txt}\nduration: 6 steps\nbatch: {global: 18, micro: 3}\n"
             "parallel: {workers: 2, engine: " +
                 engine + ", watch_divergence: 2}\n",
             "r.yaml", {}, ".", recipe::Inputs::none)
      .recipe;
}

// The weights after the recipe's steps on 2 ranks.
std::vector<torch::Tensor> trained(const recipe::Recipe& recipe) {
  const TempFolder folder;
  std::vector<std::unique_ptr<parallel::NetTask>> tasks;
  for (int rank = 0; rank < 2; ++rank) tasks.push_back(std::make_unique<parallel::NetTask>());
  std::vector<std::unique_ptr<parallel::Engine>> engines(2);
  const auto x = torch::arange(300).view({60, 5}).to(torch::kFloat).mul(0.37).sin();
  const auto y = x.narrow(1, 0, 2) * 2;
  parallel::on_ranks(2, [&](int rank, const std::shared_ptr<collective::Group>& world) {
    at::set_num_threads(1);
    const auto at = static_cast<std::size_t>(rank);
    engines[at] = parallel::make_engine(recipe, *tasks[at], world);
    TensorSamples samples({x, y, torch::ones({60, 2})});
    Worker worker;
    worker.rank = rank;
    worker.world_size = 2;
    worker.folder = folder.path();
    Trainer trainer(recipe, worker, *engines[at], *tasks[at], samples, nullptr, {}, world);
    CHECK(trainer.run().steps == 6);
  });
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : tasks[1]->net.parameters())
    weights.push_back(parameter.detach().clone());
  return weights;
}

TEST_CASE("an engine of a program's own is chosen by its recipe and trains as it says") {
  CHECK_THROWS_WITH_AS(
      read("counting"),
      doctest::Contains("parallel.engine = counting: must be one of replicated, sharded, mesh"),
      ConfigError);
  parallel::register_engine("counting", [](const auto& recipe, auto& task, auto world) {
    return std::make_unique<Counting>(recipe, task, std::move(world));
  });
  const recipe::Recipe own = read("counting");
  CHECK(own.parallel.engine == "counting");
  const auto weights = trained(own), plain = trained(read("replicated"));
  CHECK(Counting::steps == 2 * 6);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(weights[i].equal(plain[i]));
}

TEST_CASE("an engine that is none is refused before a process starts, with the names of all") {
  recipe::Recipe recipe;
  recipe.parallel.engine = "nope";
  recipe.parallel.workers = 2;
  parallel::NetTask task;
  TensorSamples samples({torch::zeros({60, 5}), torch::zeros({60, 2}), torch::ones({60, 2})});
  char name[] = "test";
  char* argv[] = {name, nullptr};
  std::string error;
  try {
    fit(1, argv, recipe, task, samples);
  } catch (const ConfigError& refused) {
    error = refused.what();
  }
  for (const std::string& known : parallel::engine_names())
    CHECK_MESSAGE(error.find(known) != std::string::npos, error);
  CHECK_THROWS_AS(read("nope"), ConfigError);
}

}  // namespace
}  // namespace tutti::train
