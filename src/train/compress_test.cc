// Compressed sums over data ranks (parallel/reducer.h) in whole trainings: in layouts, resumed,
// beside plain ones.
#include <doctest/doctest.h>

#include <limits>
#include <tuple>

#include "base/fs.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

constexpr const char* kinds[] = {"bf16", "fp16", "int8", "int4", "sign", "topk", "powersgd"};
constexpr const char* mechanisms[] = {"int8", "sign", "topk",
                                      "powersgd"};  // the others are as int8

recipe::Recipe compressing(const std::string& kind, int workers = 2) {
  recipe::Recipe recipe = base("llama");
  recipe.reproducible = false;
  recipe.parallel.workers = workers;
  recipe.parallel.compress = kind;
  recipe.parallel.compress_rank = 2;
  recipe.parallel.compress_ratio = 0.1;
  recipe.parallel.compress_after = kind == "sign" ? 2 : 0;
  return recipe;
}

Stretch first(std::int64_t count) { return {.count = count}; }

bool is_error(const std::string& name) { return name.find("compress.") != std::string::npos; }

// Worst difference of the weights, relative to the largest of each.
double apart(const Run& a, const Run& b) {
  double worst = 0;
  for (const auto& [name, value] : b.state)
    if (name.starts_with("model/"))
      worst = std::max(worst, (a.state.at(name) - value).abs().max().item<double>() /
                                  (1e-12 + value.abs().max().item<double>()));
  return worst;
}

void check_equal(const Run& a, const Run& b) {
  REQUIRE(a.state.size() == b.state.size());
  for (const auto& [name, value] : b.state) CHECK_MESSAGE(a.state.at(name).equal(value), name);
}

// All steps on the same batch, which can be learnt by heart.
std::vector<double> losses(const recipe::Recipe& recipe, int count) {
  std::vector<double> all;
  play(recipe, [&](const Player& player) {
    for (int step = 0; step < count; ++step) {
      parallel::StepInput input;
      input.step = step;
      input.lr = 0.01;
      input.batches = [](std::int64_t id) { return batch_of(0, id); };
      const auto outcome = player.engine.step(input);
      if (player.rank == 0) all.push_back(outcome.loss);
    }
  });
  return all;
}

TEST_CASE("compressed training learns as plain sums do") {
  constexpr int count = 80;
  const std::vector<double> plain = losses(compressing("none"), count);
  for (const std::string kind : kinds) {
    recipe::Recipe recipe = compressing(kind);
    if (recipe.parallel.compress == "sign") recipe.parallel.compress_after = 10;
    REQUIRE(legal(recipe));
    const std::vector<double> with = losses(recipe, count);
    CAPTURE(kind);
    MESSAGE(kind, ": loss ", with.front(), " -> ", with.back(), ", plain ", plain.back());
    CHECK(with.back() != plain.back());
    CHECK(plain.front() - with.back() > 0.8 * (plain.front() - plain.back()));
  }
}

// zero, tensor, context, pipeline, beside two data ranks.
constexpr std::tuple<int, int, int, int> layouts[] = {{0, 1, 1, 1}, {1, 1, 1, 1}, {0, 2, 1, 1},
                                                      {0, 1, 2, 1}, {0, 1, 1, 2}, {1, 2, 1, 2}};

recipe::Recipe in_layout(recipe::Recipe recipe, const std::tuple<int, int, int, int>& layout) {
  recipe::Parallel& p = recipe.parallel;
  std::tie(p.zero, p.tensor, p.context, p.pipeline) = layout;
  p.workers = 2 * p.tensor * p.context * p.pipeline;
  return recipe;
}

// The first step's sums of gradients, and what all data ranks together have not sent.
std::map<std::string, torch::Tensor> sent_and_left(const recipe::Recipe& recipe) {
  std::vector<std::vector<StateTensor>> ranks(static_cast<std::size_t>(recipe.parallel.workers));
  play(
      recipe,
      [&](const Player& player) {
        player.step(0);
        auto& mine = ranks[static_cast<std::size_t>(player.rank)];
        for (auto tensors : {player.engine.gradients(), player.engine.state()})
          for (StateTensor& tensor : tensors)
            mine.push_back(
                {tensor.name, tensor.value.clone(), tensor.shape, tensor.box, tensor.owned});
      },
      {}, torch::kDouble);
  std::map<std::string, torch::Tensor> sums, whole;
  for (StateTensor& tensor : parallel::assemble(ranks)) whole[tensor.name] = tensor.value;
  for (const auto& [name, value] : whole)
    if (whole.contains("model/" + name)) sums[name] = value;
  for (const auto& [name, value] : whole)
    if (name.find("error/") != std::string::npos)
      sums.at(name.substr(name.find("error/") + 6)) += value;
  return sums;
}

// assemble() checks that what ranks hold alike has the same bits.
TEST_CASE("compressed sums in layouts: what was sent and what is left is the gradient") {
  const auto expected = sent_and_left(base("llama"));
  for (const std::string kind : mechanisms)
    for (const auto& layout : layouts) {
      recipe::Recipe recipe = in_layout(compressing(kind), layout);
      recipe.optimizer.name = "sgd";  // sign from the first step
      recipe.parallel.compress_after = 0;
      CAPTURE(kind);
      CAPTURE(text_of(recipe));
      const auto found = sent_and_left(recipe);
      CHECK(found.size() == expected.size());
      for (const auto& [name, value] : expected)
        CHECK_MESSAGE(found.at(name).allclose(value, 1e-9, 1e-9), name);
    }
}

TEST_CASE("compressed sums: a tied embedding of two stages goes plain") {
  const auto expected = sent_and_left(base("gpt2"));
  for (const std::string kind : mechanisms)
    for (const int zero : {0, 1}) {
      recipe::Recipe recipe = in_layout(compressing(kind), {zero, 1, 1, 2});
      recipe.model = base("gpt2").model;
      recipe.optimizer.name = "sgd";
      recipe.parallel.compress_after = 0;
      CAPTURE(kind);
      for (const auto& [name, value] : sent_and_left(recipe))
        CHECK_MESSAGE(expected.at(name).allclose(value, 1e-9, 1e-9), name);
      const Run run = train(recipe, torch::kFloat, first(1));
      CHECK(run.state.contains("data.0/compress.error/transformer.h.0.mlp.c_fc.weight"));
      CHECK_FALSE(run.state.contains("data.0/compress.error/transformer.wte.weight"));
    }
}

// What no layout changes: how tensors are cut over data ranks alone. Tensor ranks cut them, and
// zero 1 rounds sums once where zero 0 rounds them twice.
TEST_CASE("compressed training in layouts: replicas stay equal") {
  for (const std::string kind : mechanisms) {
    const bool once = kind == "topk" || kind == "powersgd";
    const Run expected = train(compressing(kind), torch::kDouble, first(4));
    for (const auto& layout : layouts) {
      const recipe::Recipe recipe = in_layout(compressing(kind), layout);
      CAPTURE(kind);
      CAPTURE(text_of(recipe));
      REQUIRE(legal(recipe));
      const Run run = train(recipe, torch::kDouble, first(4));
      if (recipe.parallel.tensor > 1 || (recipe.parallel.zero == 1 && !once)) continue;
      CHECK(apart(run, expected) <= (recipe.parallel.context > 1 ? 1e-9 : 0));
    }
  }
}

TEST_CASE("compressed training resumed is as if it had not stopped") {
  for (const std::string kind : mechanisms)
    for (const auto& layout : layouts) {
      const recipe::Recipe recipe = in_layout(compressing(kind), layout);
      CAPTURE(kind);
      CAPTURE(text_of(recipe));
      REQUIRE(legal(recipe));
      const TempFolder folder;
      const Run expected = train(recipe, torch::kFloat, first(5));
      train(recipe, torch::kFloat, {.count = 3, .save = folder.path()});
      check_equal(train(recipe, torch::kFloat, {.first = 3, .count = 2, .load = folder.path()}),
                  expected);
      const torch::Tensor& error =
          expected.state.at("data.1/compress.error/model.layers.0.mlp.up_proj.weight");
      CHECK(error.abs().max().item<double>() > 0);
    }
}

// What the ranks together have not sent, of each parameter.
std::map<std::string, torch::Tensor> unsent(const Run& run) {
  std::map<std::string, torch::Tensor> sums;
  for (const auto& [name, value] : run.state) {
    if (!name.starts_with("data.")) continue;
    const std::string rest = name.substr(name.find('/') + 1);
    sums[rest] = sums.contains(rest) ? sums[rest] + value : value;
  }
  return sums;
}

TEST_CASE("compressed training goes on with other data ranks, another policy or none") {
  for (const std::string kind : {"int8", "topk", "powersgd"}) {
    CAPTURE(kind);
    const TempFolder folder;
    recipe::Recipe recipe = compressing(kind, 4);
    const Run before = train(recipe, torch::kDouble, {.count = 3, .save = folder.path()});
    for (const int workers : {1, 2, 3, 6}) {
      recipe.parallel.workers = workers;
      const Run after =
          train(recipe, torch::kDouble, {.first = 3, .count = 0, .load = folder.path()});
      const auto was = unsent(before), is = unsent(after);
      for (const auto& [name, value] : is)
        CHECK_MESSAGE(value.allclose(was.at(name), 0, 1e-12), name);
      CHECK(is.empty() == (workers == 1));
      for (const auto& [name, value] : after.state)
        if (!is_error(name) || name.find("sum_error") != std::string::npos ||
            name.find("factor") != std::string::npos)
          CHECK_MESSAGE(before.state.at(name).equal(value), name);
    }
    recipe.parallel.workers = 2;
    for (const std::string other : kinds) {
      recipe.parallel.compress = other;
      recipe.parallel.compress_after = 1;
      recipe.parallel.compress_rank = 3;
      train(recipe, torch::kDouble, {.first = 3, .count = 1, .load = folder.path()});
    }
    recipe.parallel.compress = "none";
    const Run plain =
        train(recipe, torch::kDouble, {.first = 3, .count = 1, .load = folder.path()});
    for (const auto& [name, value] : plain.state) CHECK_MESSAGE(!is_error(name), name);
  }
}

// Of each parameter, of ranks and of the sum together.
std::map<std::string, torch::Tensor> unsent_in_all(const Run& run) {
  std::map<std::string, torch::Tensor> sums;
  for (const auto& [name, value] : run.state) {
    const std::size_t error = name.find("error/");
    if (error == std::string::npos) continue;
    const std::string parameter = name.substr(error + 6);
    sums[parameter] = sums.contains(parameter) ? sums[parameter] + value : value;
  }
  return sums;
}

TEST_CASE("compressed sums: what zero 0 has not sent of the sum is sent by zero 1, and back") {
  for (const std::string kind : {"int8", "sign"})
    for (const int zero : {0, 1}) {
      CAPTURE(kind);
      CAPTURE(zero);
      const TempFolder folder;
      recipe::Recipe recipe = compressing(kind, 4);
      recipe.parallel.zero = zero;
      recipe.parallel.compress_after = 0;
      recipe.optimizer.name = "sgd";
      const Run before = train(recipe, torch::kDouble, {.count = 3, .save = folder.path()});
      recipe.parallel.zero = 1 - zero;
      recipe.parallel.workers = 2;
      const Run after =
          train(recipe, torch::kDouble, {.first = 3, .count = 0, .load = folder.path()});
      const auto was = unsent_in_all(before), is = unsent_in_all(after);
      CHECK(is.size() == was.size());
      for (const auto& [name, value] : is)
        CHECK_MESSAGE(value.allclose(was.at(name), 0, 1e-12), name);
    }
}

TEST_CASE("compressed sums begin after plain ones") {
  for (const std::string kind : kinds) {
    CAPTURE(kind);
    recipe::Recipe recipe = compressing(kind);
    recipe.parallel.compress_after = 3;
    const Run expected = train(compressing("none"), torch::kFloat, first(3));
    const Run run = train(recipe, torch::kFloat, first(3));
    for (const auto& [name, value] : expected.state)
      CHECK_MESSAGE(run.state.at(name).equal(value), name);
    const Run one_more = train(recipe, torch::kFloat, first(4));
    const std::string variance = "optimizer.exp_avg_sq/model.layers.0.mlp.up_proj.weight";
    CHECK(one_more.state.at(variance).equal(run.state.at(variance)) == (kind == "sign"));
    CHECK(apart(one_more, train(compressing("none"), torch::kFloat, first(4))) > 0);
  }
}

// A gradient that is not finite is skipped and leaves no trace in what is sent later.
TEST_CASE("compressed sums: a step that is skipped leaves no trace") {
  for (const std::string kind : kinds) {
    CAPTURE(kind);
    recipe::Recipe recipe = compressing(kind);
    recipe.on_nan = "skip";
    std::map<bool, std::vector<torch::Tensor>> ends;
    for (const bool spoilt : {false, true})
      play(recipe, [&](const Player& player) {
        for (std::int64_t step = 0; step < 4; ++step) {
          if (spoilt && step == 2) {
            torch::Tensor weight = player.parameter("model.norm.weight");
            const torch::Tensor kept = weight.clone();
            if (player.rank == 1) weight.fill_(std::numeric_limits<float>::quiet_NaN());
            CHECK_FALSE(player.step(9).applied);
            weight.copy_(kept);
          }
          CHECK(player.step(step).applied);
        }
        if (player.rank == 0)
          for (const StateTensor& tensor : player.engine.state())
            ends[spoilt].push_back(tensor.value.clone());
      });
    REQUIRE(ends[true].size() == ends[false].size());
    for (std::size_t i = 0; i < ends[true].size(); ++i) CHECK(ends[true][i].equal(ends[false][i]));
  }
}

// The first steps are skipped until the scale fits.
TEST_CASE("compressed sums in fp16 keep errors without the loss's scale") {
  const std::string error = "data.0/compress.error/model.layers.0.mlp.up_proj.weight";
  recipe::Recipe recipe = compressing("int8");
  const Run exact = train(recipe, torch::kFloat, first(4));
  recipe.precision = "fp16";
  REQUIRE(legal(recipe));
  const Run half = train(recipe, torch::kFloat, first(12));
  recipe.parallel.compress = "none";
  const Run plain = train(recipe, torch::kFloat, first(12));
  const parallel::StepOutcome &one = half.outcomes.back(), &other = plain.outcomes.back();
  REQUIRE(one.applied);
  REQUIRE(other.applied);
  CHECK(one.loss_scale > 10);
  CHECK(relative(one.loss, other.loss) < 0.05);
  CHECK(relative(one.grad_norm, other.grad_norm) < 0.5);
  const auto most = [&](const Run& run) { return run.state.at(error).abs().max().item<double>(); };
  CHECK(most(half) / most(exact) > 0.2);
  CHECK(most(half) / most(exact) < 5);
}

TEST_CASE("compressed sums are refused where they have no meaning") {
  for (const std::string kind : kinds) {
    CHECK(legal(compressing(kind)));
    recipe::Recipe recipe = compressing(kind);
    recipe.reproducible = true;
    CHECK_FALSE(legal(recipe));
    recipe = compressing(kind);
    recipe.parallel.zero = 2;
    CHECK_FALSE(legal(recipe));
    recipe = compressing(kind);
    recipe.parallel.islands = 2;
    recipe.parallel.local_steps = 2;
    CHECK_FALSE(legal(recipe));
  }
}

}  // namespace
}  // namespace tutti::train
