// Islands (parallel/islands.h) beside their algorithm written out, in layouts, and resumed.
#include "parallel/islands.h"

#include <doctest/doctest.h>

#include <atomic>

#include "base/fs.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

recipe::Recipe islands(int count, int local_steps, double lr = 0.7, double momentum = 0.9) {
  recipe::Recipe recipe = base("llama");
  recipe.parallel.workers = recipe.parallel.islands = count;
  recipe.parallel.local_steps = local_steps;
  recipe.optimizer.outer_lr = lr;
  recipe.optimizer.outer_momentum = momentum;
  return recipe;
}

using Tensors = std::map<std::string, torch::Tensor>;

// One worker that is an island, stepped by hand.
struct Island {
  Island(const recipe::Recipe& recipe, torch::ScalarType type) {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    model->to(type);
    task = std::make_unique<LanguageTask>(model, recipe);
    group = collective::make_thread_groups(1)[0];
    engine = parallel::make_engine(recipe, *task, group);
  }
  Tensors weights() const {
    Tensors all;
    for (const StateTensor& tensor : engine->state())
      if (tensor.name.starts_with("model/")) all[tensor.name] = tensor.value;
    return all;
  }
  std::unique_ptr<LanguageTask> task;
  std::shared_ptr<collective::Group> group;
  std::unique_ptr<parallel::Engine> engine;
};

// Algorithm 1 of DiLoCo, line by line; the weights after `rounds` means.
Tensors by_hand(const recipe::Recipe& recipe, int rounds) {
  const int count = static_cast<int>(recipe.parallel.islands);
  const recipe::Recipe part = plan::island_of(recipe);
  const double lr = recipe.optimizer.outer_lr, mu = recipe.optimizer.outer_momentum;
  const std::int64_t parts = part.batch.global / part.batch.micro;
  const torch::NoGradGuard no_grad;
  std::vector<std::unique_ptr<Island>> all;
  for (int i = 0; i < count; ++i) all.push_back(std::make_unique<Island>(part, torch::kDouble));
  Tensors outer, velocity;
  for (auto& [name, value] : all[0]->weights()) {
    outer[name] = value.clone();
    velocity[name] = torch::zeros_like(value);
  }
  std::int64_t step = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int h = 0; h < recipe.parallel.local_steps; ++h, ++step)
      for (int i = 0; i < count; ++i) {
        const torch::AutoGradMode gradients(true);
        parallel::StepInput input;
        input.step = step;
        input.lr = 0.02;
        input.batches = [&](std::int64_t id) { return batch_of(step, i * parts + id); };
        all[static_cast<std::size_t>(i)]->engine->step(input);
      }
    for (auto& [name, before] : outer) {
      torch::Tensor mean = torch::zeros_like(before);
      for (const auto& island : all) mean += island->weights()[name] / count;
      const torch::Tensor delta = before - mean;
      velocity[name] = mu * velocity[name] + delta;
      before = before - lr * (mu > 0 ? delta + mu * velocity[name] : delta);
      for (const auto& island : all) island->weights()[name].copy_(before);
    }
    for (const auto& island : all) island->engine->restored();
  }
  return outer;
}

double worst(const Tensors& ours, const Tensors& theirs) {
  double difference = 0;
  for (const auto& [name, value] : theirs) {
    const double scale = 1e-12 + value.abs().max().item<double>();
    difference = std::max(difference, (ours.at(name) - value).abs().max().item<double>() / scale);
  }
  return difference;
}

Stretch first(std::int64_t count) { return {.count = count}; }

TEST_CASE("islands: the algorithm, written out") {
  for (const auto& [count, local, lr, mu] :
       {std::tuple{2, 2, 0.7, 0.9}, {3, 1, 1.0, 0.0}, {4, 3, 0.5, 0.5}}) {
    const recipe::Recipe recipe = islands(count, local, lr, mu);
    CAPTURE(count);
    REQUIRE(legal(recipe));
    const Run run = train(recipe, torch::kDouble, first(2 * local));
    CHECK(worst(run.state, by_hand(recipe, 2)) < 1e-12);
    CHECK(run.state.contains("outer.momentum/model.norm.weight"));
    CHECK(run.state.contains(str("island.", count - 1, "/optimizer.exp_avg/model.norm.weight")));
  }
}

// With so many bits the means are near; with few, the errors are kept for the next.
TEST_CASE("islands that send rounded changes: near, alike in layouts, resumed to the bit") {
  const recipe::Recipe plain = islands(2, 2);
  const Run expected = train(plain, torch::kFloat, first(6));
  for (const auto& [type, near] : {std::pair{"bf16", 1e-3}, {"int8", 3e-3}, {"int4", 5e-2}}) {
    CAPTURE(type);
    recipe::Recipe recipe = plain;
    recipe.optimizer.outer_type = type;
    const Run run = train(recipe, torch::kFloat, first(6));
    const double loss = std::abs(run.evaluation / expected.evaluation - 1);
    CHECK(loss > 0);
    CHECK(loss < near);
    recipe.parallel.workers = 4;
    const Run two = train(recipe, torch::kFloat, first(6));
    for (const auto& [name, value] : run.state)
      CHECK_MESSAGE(two.state.at(name).equal(value), name);
    const TempFolder folder;
    train(recipe, torch::kFloat, {.count = 2, .save = folder.path()});
    recipe.parallel.workers = 2;  // the error of a tensor is another rank's now
    const Run on = train(recipe, torch::kFloat, {.first = 2, .count = 4, .load = folder.path()});
    for (const auto& [name, value] : run.state) CHECK_MESSAGE(on.state.at(name).equal(value), name);
    CHECK(run.state.at("island.1/outer.error/model.norm.weight").abs().max().item<double>() > 0);
  }
}

TEST_CASE("islands do not skip steps that others make") {
  recipe::Recipe recipe = islands(2, 2);
  recipe.on_nan = "skip";
  CHECK(!legal(recipe));
  recipe.on_nan = "stop";
  recipe.precision = "fp16";
  CHECK(!legal(recipe));
}

TEST_CASE("islands: one of them, a mean each step, rate 1: the inner optimizer, bit for bit") {
  recipe::Recipe plain = base("llama");
  const Run expected = train(plain, torch::kFloat, first(4));
  const Run run = train(islands(1, 1, 1, 0), torch::kFloat, first(4));
  for (const auto& [name, value] : expected.state)
    CHECK_MESSAGE(run.state.at(name.starts_with("model/") ? name : "island.0/" + name).equal(value),
                  name);
  CHECK(run.outcomes.back().loss == expected.outcomes.back().loss);
  CHECK(run.evaluation == expected.evaluation);
}

TEST_CASE("islands in layouts are islands of one worker each") {
  recipe::Recipe recipe = islands(2, 2);
  const Run expected = train(recipe, torch::kDouble, first(4));
  recipe.parallel.workers = 4;
  for (const auto& [zero, tensor, pipeline] :
       {std::tuple{0, 1, 1}, {2, 1, 1}, {3, 1, 1}, {0, 2, 1}, {0, 1, 2}}) {
    recipe.parallel.zero = zero;
    recipe.parallel.tensor = tensor;
    recipe.parallel.pipeline = pipeline;
    REQUIRE(legal(recipe));
    CAPTURE(text_of(recipe));
    const auto [difference_, name] = difference(train(recipe, torch::kDouble, first(4)), expected);
    CAPTURE(name);
    CHECK(difference_ <= (tensor > 1 ? 1e-9 : 0));
  }
}

TEST_CASE("islands resumed after a mean are as if they had not stopped") {
  const TempFolder folder;
  recipe::Recipe recipe = islands(2, 2);
  recipe.parallel.workers = 4;
  recipe.parallel.zero = 1;
  const Run expected = train(recipe, torch::kFloat, first(6));
  train(recipe, torch::kFloat, {.count = 2, .save = folder.path()});
  const Run run = train(recipe, torch::kFloat, {.first = 2, .count = 4, .load = folder.path()});
  for (const auto& [name, value] : expected.state)
    CHECK_MESSAGE(run.state.at(name).equal(value), name);
}

TEST_CASE("islands: the weights cross once, whatever an island's ranks hold twice") {
  recipe::Recipe recipe = islands(2, 1);
  recipe.parallel.workers = 8;
  recipe.batch.global = 32;
  for (const auto& [zero, tensor, type] :
       {std::tuple{0, 1, "fp32"}, {3, 1, "fp32"}, {1, 2, "fp32"}, {0, 2, "int4"}}) {
    recipe.parallel.zero = zero;
    recipe.parallel.tensor = tensor;
    recipe.optimizer.outer_type = type;
    CAPTURE(text_of(recipe));
    std::atomic<std::int64_t> crossed = 0, parameters = 0;
    play(recipe, [&](const Player& player) {
      player.world->on_call([&](const collective::Call& call) {
        const bool sum = std::string(call.operation) == "all_reduce" &&
                         call.bytes > 40;  // but for what all must know
        if (call.group.name().starts_with("islands") && sum) crossed += call.bytes;
        if (call.group.name().starts_with("islands") && call.operation == std::string("all_gather"))
          crossed += call.bytes / 2;  // what each of two brings
      });
      player.step(0);
      player.world->on_call({});
      parameters = player.engine.parameter_count();
    });
    const auto each = static_cast<double>(crossed) / 2 / static_cast<double>(parameters);
    if (type == std::string("fp32"))
      CHECK(each == 4);
    else
      CHECK(each < 0.7);  // small parameters do not fill their blocks
  }
}

TEST_CASE("islands: between means nothing crosses, and nobody stops") {
  const recipe::Recipe recipe = islands(2, 3);
  play(recipe, [&](const Player& player) {
    int crossed = 0;
    player.world->on_call([&](const collective::Call& call) {
      crossed += call.group.name().starts_with("islands") ? 1 : 0;
    });
    for (std::int64_t step = 0; step < 6; ++step) {
      parallel::StepInput input;
      input.step = step;
      input.stop = player.rank == 1;
      input.elapsed = static_cast<double>(step + 1);
      input.lr = 0.02;
      input.batches = [&](std::int64_t id) { return batch_of(step, id); };
      const auto outcome = player.engine.step(input);
      const bool mean = step % 3 == 2;
      CHECK(outcome.stop == mean);
      CHECK(crossed == (mean ? 2 : 0));  // the weights, and what all must know
      CHECK(outcome.elapsed == (step < 2 ? 0 : step < 5 ? 3 : 6));
      crossed = 0;
    }
    player.world->on_call({});
  });
}

}  // namespace
}  // namespace tutti::train
