// The loop around a toy engine's worth of work: what it tells, when it ends, what it saves.
#include <doctest/doctest.h>

#include <csignal>

#include "base/error.h"
#include "base/fs.h"
#include "checkpoint/loader.h"
#include "parallel/engines.h"
#include "train/fit.h"
#include "train/trainer.h"

using namespace tutti;
using namespace tutti::train;

namespace {

struct Line : torch::nn::Module {
  Line() { weight = register_parameter("weight", torch::tensor({0.5f, -0.25f})); }
  torch::Tensor weight;
};

TensorSamples samples(std::int64_t count, bool shuffle = true) {
  const auto x = torch::arange(count * 2).view({count, 2}).to(torch::kFloat).mul(0.37).sin();
  return TensorSamples({x, x.sum(1) * 2}, shuffle);
}

// Writes down what it is told.
struct Diary : Callback {
  void on_start(const StartEvent& event) override {
    text += str("start ", event.first_step, "/", event.total_steps, ";");
    start = event;
  }
  void on_step(const StepEvent& event) override {
    text += str("step ", event.step, ";");
    rates.push_back(event.lr);
    losses.push_back(event.outcome.loss);
  }
  void on_evaluation(std::int64_t step, double) override { text += str("eval ", step, ";"); }
  void on_checkpoint(std::int64_t step) override { text += str("save ", step, ";"); }
  void on_span(const char* name, std::int64_t step, double, double) override {
    spans += str(name, " ", step, ";");
  }
  bool should_stop() const override { return losses.size() >= enough; }
  void on_end(std::int64_t steps) override { text += str("end ", steps, ";"); }
  std::string state() const override { return str(losses.size()); }
  void set_state(const std::string& state) override { told = state; }
  std::string text, spans, told;
  StartEvent start;
  std::size_t enough = 1000;
  std::vector<double> rates, losses;
};

struct Outcome {
  Result result;
  std::shared_ptr<Diary> diary;
  torch::Tensor weight;
};

recipe::Recipe recipe_of(double steps) {
  recipe::Recipe recipe;
  recipe.duration = {steps, recipe::Duration::Unit::steps};
  recipe.batch = {8, 4};
  recipe.schedule.warmup = {0, recipe::Duration::Unit::steps};
  return recipe;
}

Outcome train_line(const recipe::Recipe& recipe, const fs::path& folder, bool resume = false,
                   std::size_t enough = 1000, bool validate = true, std::int64_t count = 20) {
  auto module = std::make_shared<Line>();
  auto task = make_task(module, [](Line& line, const parallel::Batch& batch) {
    const auto wrong = torch::mv(batch[0], line.weight) - batch[1];
    return parallel::Loss{wrong.square().sum(), static_cast<double>(batch[0].size(0))};
  });
  Worker worker;
  worker.folder = folder;
  worker.resume = resume;
  const auto engine = parallel::make_engine(recipe, *task, collective::make_thread_groups(1)[0]);
  auto training = samples(count), held_out = samples(10, false);
  auto diary = std::make_shared<Diary>();
  diary->enough = enough;
  Trainer trainer(recipe, worker, *engine, *task, training, validate ? &held_out : nullptr,
                  {diary});
  Outcome outcome{trainer.run(), diary, {}};
  outcome.weight = module->weight.detach().clone();
  return outcome;
}

}  // namespace

TEST_CASE("samples: which one lies at a position does not depend on how batches are cut") {
  auto all = samples(7);
  const auto whole = all.batch(0, 21);
  for (const std::int64_t size : {1, 2, 5})
    for (std::int64_t first = 0; first + size <= 21; first += size)
      for (std::size_t i = 0; i < whole.size(); ++i)
        CHECK(all.batch(first, size)[i].equal(whole[i].slice(0, first, first + size)));
  // Each epoch has each sample once, in an order of its own.
  const auto epoch = [&](std::int64_t e) { return whole[1].slice(0, e * 7, e * 7 + 7); };
  CHECK(std::get<0>(epoch(0).sort()).equal(std::get<0>(epoch(1).sort())));
  CHECK_FALSE(epoch(0).equal(epoch(1)));
  auto ordered = samples(7, false);
  CHECK(ordered.batch(3, 1)[1].equal(ordered.batch(10, 1)[1]));
  CHECK_THROWS_AS(TensorSamples({}), ConfigError);
  CHECK_THROWS_AS(TensorSamples({torch::zeros({2}), torch::zeros({3})}), ConfigError);
}

TEST_CASE("early stop: after `patience` evaluations that were no better") {
  EarlyStop stop(2, 0.1);
  for (const double loss : {3.0, 2.0, 1.95}) stop.on_evaluation(0, loss);
  CHECK_FALSE(stop.should_stop());
  stop.on_evaluation(0, 1.93);
  CHECK(stop.should_stop());
  EarlyStop resumed(2, 0.1);
  resumed.set_state(EarlyStop(2).state());  // of one that saw nothing
  CHECK_FALSE(resumed.should_stop());
  resumed.set_state(stop.state());
  CHECK(resumed.should_stop());
}

TEST_CASE("trainer: what it tells, in order") {
  const TempFolder folder;
  recipe::Recipe recipe = recipe_of(5);
  recipe.evaluation.every = {2, recipe::Duration::Unit::steps};
  recipe.checkpoint.every = {4, recipe::Duration::Unit::steps};
  const Outcome outcome = train_line(recipe, folder.path());
  CHECK(outcome.diary->text ==
        "start 0/5;step 1;eval 2;step 2;step 3;eval 4;step 4;save 4;step 5;eval 5;save 5;end 5;");
  CHECK(outcome.diary->spans ==
        "evaluation 2;evaluation 4;checkpoint 4;evaluation 5;checkpoint 5;");
  CHECK(outcome.result.steps == 5);
  CHECK(outcome.result.validation_loss.has_value());
  CHECK_FALSE(outcome.weight.equal(Line().weight));
}

TEST_CASE("trainer: a callback may end the run, which is then saved; resuming goes on") {
  const TempFolder folder, other;
  const recipe::Recipe recipe = recipe_of(6);
  const Outcome part = train_line(recipe, folder.path(), false, 2);
  CHECK(part.result.steps == 2);
  CHECK_FALSE(part.result.interrupted);
  const Outcome rest = train_line(recipe, folder.path(), true);
  CHECK(rest.diary->text.starts_with("start 2/6;step 3;"));
  CHECK(rest.diary->told == "2");
  const Outcome whole = train_line(recipe, other.path());
  CHECK(rest.weight.equal(whole.weight));
  CHECK(rest.diary->losses.back() == whole.diary->losses.back());
  const Outcome again = train_line(recipe, folder.path(), true);
  CHECK(again.diary->text.starts_with("start 6/6;eval 6;end 6;"));
  CHECK(again.result.loss == rest.result.loss);
  CHECK(again.result.validation_loss == rest.result.validation_loss);
  CHECK_THROWS_WITH_AS(train_line(recipe, folder.path(), true, 1000, true, 21),
                       doctest::Contains("21 samples: is not what the run began with: 20 samples"),
                       ConfigError);
}

TEST_CASE(
    "trainer: a duration in seconds ends near it, counts what was spent before, decays by it") {
  const TempFolder folder;
  recipe::Recipe recipe = recipe_of(0);
  recipe.duration = {0.4, recipe::Duration::Unit::seconds};
  const Outcome outcome = train_line(recipe, folder.path(), false, 100000);
  CHECK(outcome.result.seconds == doctest::Approx(0.4).epsilon(0.5));
  CHECK(outcome.diary->start.total_seconds == 0.4);
  CHECK(outcome.diary->rates.front() > 0.9 * recipe.optimizer.lr);
  CHECK(outcome.diary->rates.back() < 0.2 * recipe.optimizer.lr);
  recipe.duration.amount = 0.6;
  const Outcome more = train_line(recipe, folder.path(), true, 100000);
  CHECK(more.diary->start.seconds_before == doctest::Approx(0.4).epsilon(0.2));
  CHECK(more.result.seconds < 0.5);
  CHECK(more.result.steps > outcome.result.steps);
}

TEST_CASE("trainer: without held-out data nothing is evaluated; nothing to do is done at once") {
  const TempFolder folder;
  const Outcome outcome = train_line(recipe_of(1), folder.path(), false, 1000, false);
  CHECK(outcome.diary->text == "start 0/1;step 1;save 1;end 1;");
  CHECK_FALSE(outcome.result.validation_loss.has_value());
}

TEST_CASE("trainer: some batches of an evaluation lie evenly over the held-out data") {
  const TempFolder folder, other;
  recipe::Recipe recipe = recipe_of(1);
  recipe.batch = {1, 1};
  recipe.optimizer.lr = 0;
  const double all = *train_line(recipe, folder.path()).result.validation_loss;
  recipe.evaluation.batches = 5;
  const double half = *train_line(recipe, other.path()).result.validation_loss;
  Line line;
  auto held_out = samples(10, false);
  double sum = 0, whole = 0;
  for (std::int64_t i = 0; i < 10; ++i) {
    const auto batch = held_out.batch(i, 1);
    const double loss = (torch::mv(batch[0], line.weight) - batch[1]).square().sum().item<double>();
    whole += loss;
    if (i % 2 == 0) sum += loss;
  }
  CHECK(all == doctest::Approx(whole / 10).epsilon(1e-5));
  CHECK(half == doctest::Approx(sum / 5).epsilon(1e-5));
}

TEST_CASE(
    "trainer: a loss that is not finite ends the run and leaves the checkpoint, or is skipped") {
  const TempFolder folder;
  recipe::Recipe recipe = recipe_of(4);
  recipe.optimizer = {.name = "sgd", .lr = 1e30, .clip = 0};
  recipe.checkpoint.every = {1, recipe::Duration::Unit::steps};
  CHECK_THROWS_WITH_AS(train_line(recipe, folder.path()),
                       doctest::Contains("step 2: the loss is not finite"), WorldError);
  CHECK(checkpoint::latest(folder.path() / "checkpoints").step >= 1);
  const TempFolder other;
  recipe.on_nan = "skip";
  CHECK(train_line(recipe, other.path()).result.steps == 4);
}
