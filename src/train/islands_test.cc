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

// Algorithm 2 of streaming DiLoCo, line by line: the run's weights, and each island's, "0/model/w".
Tensors streaming_by_hand(const recipe::Recipe& recipe, int rounds) {
  const int count = static_cast<int>(recipe.parallel.islands);
  const recipe::Recipe part = plan::island_of(recipe);
  const auto& o = recipe.optimizer;
  const auto& p = recipe.parallel;
  const std::int64_t parts = part.batch.global / part.batch.micro;
  const torch::NoGradGuard no_grad;
  std::vector<std::unique_ptr<Island>> all;
  for (int i = 0; i < count; ++i) all.push_back(std::make_unique<Island>(part, torch::kDouble));
  std::vector<std::pair<std::string, std::int64_t>> order;  // of the model
  std::int64_t total = 0, before = 0;
  for (const auto& named : all[0]->task->module().named_parameters()) {
    order.emplace_back("model/" + named.key(), named.value().numel());
    total += named.value().numel();
  }
  std::map<std::string, std::int64_t> fragment_of;
  for (const auto& [name, size] : order) {
    fragment_of[name] = (before + size / 2) * p.fragments / total;
    before += size;
  }
  Tensors outer, velocity, sum;
  for (auto& [name, value] : all[0]->weights()) {
    if (!fragment_of.contains(name)) continue;
    outer[name] = value.clone();
    velocity[name] = torch::zeros_like(value);
  }
  for (std::int64_t step = 0; step < rounds * p.local_steps; ++step) {
    for (int i = 0; i < count; ++i) {
      const torch::AutoGradMode gradients(true);
      parallel::StepInput input;
      input.step = step;
      input.lr = 0.02;
      input.batches = [&](std::int64_t id) { return batch_of(step, i * parts + id); };
      all[static_cast<std::size_t>(i)]->engine->step(input);
    }
    for (auto& [name, weights] : outer) {
      const std::int64_t due = (fragment_of[name] + 1) * p.local_steps / p.fragments;
      const std::int64_t now = step % p.local_steps + 1;
      if (now == due - p.overlap_steps) {
        sum[name] = torch::zeros_like(weights);
        for (const auto& island : all) sum[name] += island->weights()[name];
      }
      if (now != due) continue;
      const torch::Tensor delta = weights - sum[name] / count;
      velocity[name] = o.outer_momentum * velocity[name] + delta;
      weights = weights - o.outer_lr * (delta + o.outer_momentum * velocity[name]);
      const double own = p.overlap_steps > 0 ? o.outer_mix : 0;
      for (const auto& island : all)
        island->weights()[name].copy_(own * island->weights()[name] + (1 - own) * weights);
    }
    for (const auto& island : all) island->engine->restored();
  }
  Tensors result = outer;
  for (int i = 0; i < count; ++i)
    for (const auto& [name, value] : all[static_cast<std::size_t>(i)]->weights())
      if (outer.contains(name))
        result[str("island.", i, "/local/", name.substr(6))] = value.clone();
  return result;
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

recipe::Recipe streaming(int count, int local, int fragments, int overlap) {
  recipe::Recipe recipe = islands(count, local);
  recipe.parallel.fragments = fragments;
  recipe.parallel.overlap_steps = overlap;
  return recipe;
}

TEST_CASE("islands that stream: the algorithm, written out") {
  for (const auto& [count, local, fragments, overlap, mix] :
       {std::tuple{2, 4, 2, 1, 0.5}, {2, 3, 3, 0, 0.5}, {3, 2, 1, 1, 0.0}}) {
    recipe::Recipe recipe = streaming(count, local, fragments, overlap);
    recipe.optimizer.outer_mix = mix;
    CAPTURE(fragments);
    CAPTURE(overlap);
    REQUIRE(legal(recipe));
    const Run run = train(recipe, torch::kDouble, first(2 * local));
    CHECK(worst(run.state, streaming_by_hand(recipe, 2)) < 1e-12);
  }
}

TEST_CASE("islands that stream: in layouts, rounded, resumed to the bit") {
  using Layouts = std::vector<std::tuple<int, int, int>>;
  for (const auto& [type, layouts] :
       {std::pair{"fp32", Layouts{{1, 1, 1}, {3, 1, 1}, {0, 2, 1}, {0, 1, 2}}},
        std::pair{"int4", Layouts{{1, 1, 1}}}}) {
    recipe::Recipe recipe = streaming(2, 4, 2, 1);
    recipe.optimizer.outer_type = type;
    const Run alone = train(recipe, torch::kDouble, first(8));
    recipe.parallel.workers = 4;
    for (const auto& [zero, tensor, pipeline] : layouts) {
      recipe.parallel.zero = zero;
      recipe.parallel.tensor = tensor;
      recipe.parallel.pipeline = pipeline;
      CAPTURE(text_of(recipe));
      REQUIRE(legal(recipe));
      const Run whole = train(recipe, torch::kDouble, first(8));
      const auto [apart, name] = difference(whole, alone);
      CAPTURE(name);
      CHECK(apart <= (tensor > 1 ? 1e-9 : 0));
      const TempFolder folder;
      train(recipe, torch::kDouble, {.count = 4, .save = folder.path()});
      const Run on = train(recipe, torch::kDouble, {.first = 4, .count = 4, .load = folder.path()});
      for (const auto& [tensor_name, value] : whole.state)
        CHECK_MESSAGE(on.state.at(tensor_name).equal(value), tensor_name);
      CHECK(on.evaluation == whole.evaluation);
    }
  }
}

TEST_CASE("islands that stream look at the run's weights, and go on with their own") {
  recipe::Recipe recipe = streaming(2, 4, 2, 1);
  play(recipe, [&](const Player& player) {
    for (std::int64_t step = 0; step < 4; ++step) player.step(step);
    const auto look = [&] {
      return player.engine.evaluate(2, [](std::int64_t id) { return batch_of(9, id); });
    };
    const torch::Tensor own = player.parameter("model.norm.weight").clone();
    const torch::Tensor of_run = player.state("model/model.norm.weight").clone();
    CHECK_FALSE(own.equal(of_run));
    const double loss = look();
    CHECK(player.parameter("model.norm.weight").equal(own));
    const torch::NoGradGuard no_grad;
    for (const StateTensor& tensor : player.engine.state())
      if (tensor.name.find("/local/") != std::string::npos && tensor.value.numel() > 0)
        torch::Tensor(tensor.value).fill_(3);
    player.engine.restored();
    CHECK(look() == loss);
  });
}

TEST_CASE("islands that stream send what is due, and nothing else") {
  recipe::Recipe recipe = streaming(2, 6, 2, 1);
  play(recipe, [&](const Player& player) {
    std::vector<std::size_t> crossed;  // bytes of a step
    player.world->on_call([&](const collective::Call& call) {
      if (call.group.name().starts_with("islands") && call.bytes > 40) crossed.back() += call.bytes;
    });
    for (std::int64_t step = 0; step < 12; ++step) {
      crossed.push_back(0);
      player.step(step);
    }
    player.world->on_call({});
    std::size_t round = 0;
    for (std::size_t step = 0; step < 12; ++step) {
      CHECK((crossed[step] > 0) == (step % 6 == 1 || step % 6 == 4));
      if (step < 6) round += crossed[step];
    }
    CHECK(round == 4 * static_cast<std::size_t>(player.engine.parameter_count()));
    CHECK(crossed[1] < 2 * crossed[4]);  // about as many
    CHECK(crossed[4] < 2 * crossed[1]);
  });
}

TEST_CASE("islands that stream: what does not fit is refused") {
  CHECK(legal(streaming(2, 6, 3, 1)));
  CHECK_FALSE(legal(streaming(2, 6, 3, 2)));
  CHECK_FALSE(legal(streaming(2, 6, 4, 0)));
  CHECK_FALSE(legal(streaming(2, 6, 1, 6)));
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

// The parts of a fused weight that a tensor rank holds do not lie side by side.
TEST_CASE("islands in layouts: weights that are held as copies take part in means") {
  recipe::Recipe recipe = islands(2, 2);
  recipe.model = base("gpt2").model;
  const Run expected = train(recipe, torch::kDouble, first(4));
  recipe.parallel.workers = 4;
  recipe.parallel.tensor = 2;
  REQUIRE(legal(recipe));
  const auto [apart, name] = difference(train(recipe, torch::kDouble, first(4)), expected);
  CAPTURE(name);
  CHECK(apart <= 1e-9);
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
