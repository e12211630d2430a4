// optimizer.state: bf16 in whole trainings: the same bits in every layout of data ranks, shards and
// stages, near the losses of fp32, half the bytes, and checkpoints from and to fp32.
#include <doctest/doctest.h>

#include "base/fs.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

recipe::Recipe kept_in_bf16(const std::string& kind, const std::string& optimizer = "adamw") {
  recipe::Recipe r = base(kind);
  r.optimizer.name = optimizer;
  r.optimizer.state = "bf16";
  return r;
}

void check_same_bits(recipe::Recipe recipe, const Run& expected) {
  CAPTURE(text_of(recipe));
  REQUIRE(legal(recipe));
  const auto [worst, name] = difference(train(recipe, torch::kFloat), expected);
  CAPTURE(name);
  CHECK(worst == 0);
}

TEST_CASE("bf16 moments: data ranks, shards and pipelines have the bits of one device") {
  for (const char* optimizer : {"adamw", "sgd", "muon"}) {
    CAPTURE(std::string(optimizer));
    recipe::Recipe recipe = kept_in_bf16("llama", optimizer);
    recipe.model.mlp = 400;  // shards begin within its weights
    const Run expected = train_alone(recipe, torch::kFloat);
    recipe::Parallel& p = recipe.parallel;
    p.workers = 3;
    for (p.zero = 0; p.zero <= 3; ++p.zero) check_same_bits(recipe, expected);
    p.workers = 4, p.zero = 2, p.shard = 2;
    check_same_bits(recipe, expected);
    p.zero = 1, p.shard = 0, p.pipeline = 2;
    check_same_bits(recipe, expected);
  }
}

// Draws are by the place in the whole parameter: cut anyhow, the same elements go up.
TEST_CASE("bf16 moments: tensor and expert ranks draw for the elements that they hold") {
  for (const char* kind : {"llama", "gpt2", "moe"}) {
    recipe::Recipe recipe = kept_in_bf16(kind, "sgd");
    const Run expected = train_alone(recipe, torch::kDouble);
    recipe::Parallel& p = recipe.parallel;
    p.workers = 2;
    if (kind == std::string("moe"))
      p.expert = 2;
    else
      p.tensor = 2;
    for (int turn = 0; turn < 2; ++turn) {
      CAPTURE(text_of(recipe));
      REQUIRE(legal(recipe));
      const auto [worst, name] = difference(train(recipe, torch::kDouble), expected);
      CAPTURE(name);
      CHECK(worst < 1e-6);
      p.workers = 4;
      if (kind == std::string("moe"))
        p.expert_tensor = 2;
      else
        p.zero = 1;
    }
  }
}

// Sequences of a small grammar: the loss falls to about what its free choices cost.
parallel::Batch learnable(std::int64_t step, std::int64_t id) {
  const parallel::Batch noise = batch_of(step, id);
  const torch::Tensor inputs = noise[0] % 30;
  return {inputs, (inputs * 7 + 3 + noise[1] % 2) % 37};
}

double last_loss(const recipe::Recipe& recipe) {
  auto model = nn::make_model(recipe.model);
  nn::initialise(*model, 7);
  LanguageTask task(model, recipe);
  double loss = 0;
  parallel::on_ranks(1, [&](int, const std::shared_ptr<collective::Group>& group) {
    at::set_num_threads(1);
    const auto engine = parallel::make_engine(recipe, task, group);
    for (std::int64_t step = 0; step < 60; ++step) {
      parallel::StepInput input;
      input.step = step;
      input.lr = 0.01;
      input.batches = [step](std::int64_t id) { return learnable(step, id); };
      loss = engine->step(input).loss;
      if (step == 0) CHECK(loss > 3);
    }
  });
  return loss;
}

TEST_CASE("bf16 moments: losses stay within 1% of fp32's") {
  for (const char* optimizer : {"adamw", "sgd", "muon"}) {
    CAPTURE(std::string(optimizer));
    recipe::Recipe recipe = kept_in_bf16("llama", optimizer);
    recipe.optimizer.clip = 1;
    recipe.optimizer.beta2 = 0.999;
    recipe.optimizer.lr = 0.01;
    const double bf16 = last_loss(recipe);
    recipe.optimizer.state = "fp32";
    const double fp32 = last_loss(recipe);
    MESSAGE(std::string(optimizer) << ": " << bf16 << ", fp32: " << fp32);
    CHECK(fp32 < 2);
    CHECK(relative(bf16, fp32) < 0.01);
    CHECK(bf16 != fp32);
  }
}

TEST_CASE("bf16 moments: checkpoints load in other layouts, and to and from fp32") {
  const TempFolder folder;
  const recipe::Recipe half = kept_in_bf16("llama");
  recipe::Recipe whole = half, spread = half;
  whole.optimizer.state = "fp32";
  spread.parallel.workers = 4, spread.parallel.zero = 2, spread.parallel.pipeline = 2;
  // An uninterrupted run, and one that goes on in another layout.
  const Run expected = train(half, torch::kFloat, {0, 3});
  train(spread, torch::kFloat, {0, 2, {}, folder.path() / "half"});
  const Run resumed = train(half, torch::kFloat, {2, 1, folder.path() / "half"});
  for (const auto& [name, value] : expected.state) {
    CAPTURE(name);
    CHECK(resumed.state.at(name).equal(value));
  }
  // Moments are converted: to fp32 exactly, to bf16 to the nearest.
  const Run as_whole = train(whole, torch::kFloat, {2, 0, folder.path() / "half"});
  const Run as_half = train(half, torch::kFloat, {2, 0, folder.path() / "half"});
  train(whole, torch::kFloat, {0, 2, {}, folder.path() / "whole"});
  const Run kept = train(whole, torch::kFloat, {2, 0, folder.path() / "whole"});
  const Run to_half = train(spread, torch::kFloat, {2, 0, folder.path() / "whole"});
  int moments = 0;
  for (const auto& [name, value] : as_half.state) {
    if (!name.starts_with("optimizer.")) continue;
    CAPTURE(name);
    ++moments;
    CHECK((value.scalar_type() == torch::kBFloat16));
    CHECK(as_whole.state.at(name).equal(value.to(torch::kFloat)));
    CHECK(to_half.state.at(name).equal(kept.state.at(name).to(torch::kBFloat16)));
  }
  CHECK(moments > 0);
}

}  // namespace
}  // namespace tutti::train
