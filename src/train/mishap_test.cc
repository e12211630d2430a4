// Bad luck in a mesh: gradients that are not finite on one rank, ranks without a token to learn
// from, experts that no token chose.
#include <limits>

#include "train/divergence.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

using Set = std::function<void(recipe::Parallel&)>;

recipe::Recipe layout(const std::string& kind, int workers, const Set& set) {
  recipe::Recipe recipe = base(kind);
  recipe.model.layers = 2;
  if (kind == "moe") recipe.model.moe.experts = 4;
  recipe.batch.global = 8;
  recipe.parallel.workers = workers;
  set(recipe.parallel);
  return recipe;
}

// What the passes of one step on one rank compute is finite, but its gradient is not.
struct Unlucky : LanguageTask {
  using LanguageTask::LanguageTask;
  void at(std::int64_t step, std::int64_t micro_batch) override {
    now = step;
    LanguageTask::at(step, micro_batch);
  }
  void spoil(const torch::Tensor& value) const {
    if (now == bad_step && value.defined() && value.requires_grad())
      value.register_hook([](const torch::Tensor& gradient) {
        return gradient * std::numeric_limits<double>::quiet_NaN();
      });
  }
  parallel::Loss loss(const parallel::Batch& batch) override {
    const parallel::Loss loss = LanguageTask::loss(batch);
    spoil(loss.sum);
    return loss;
  }
  Output run_stage(const nn::Stage& stage, const torch::Tensor& in,
                   const parallel::Batch& batch) override {
    Output out = LanguageTask::run_stage(stage, in, batch);
    spoil(out.activation.defined() ? out.activation : out.loss.sum);
    return out;
  }
  std::int64_t now = -1, bad_step = -1;
};

std::vector<StateTensor> copy_of(parallel::Engine& engine) {
  std::vector<StateTensor> held = held_by(engine);
  for (StateTensor& tensor : held) tensor.value = tensor.value.clone();
  return held;
}

bool equal(const std::vector<StateTensor>& a, const std::vector<StateTensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i)
    same = a[i].name == b[i].name && a[i].value.equal(b[i].value);
  return same;
}

void check_skipped(const recipe::Recipe& recipe, int unlucky) {
  INFO(text_of(recipe), ", rank ", unlucky);
  const auto ranks = static_cast<std::size_t>(recipe.parallel.workers);
  std::vector<std::vector<parallel::StepOutcome>> outcomes(ranks);
  play(
      recipe,
      [&](const Player& player) {
        auto& mine = outcomes[static_cast<std::size_t>(player.rank)];
        DivergenceWatch watch(player.world, {});
        mine.push_back(player.step(0));
        const auto before = copy_of(player.engine);
        const std::string scalars = player.engine.scalars();
        mine.push_back(player.step(1));
        CHECK(equal(copy_of(player.engine), before));
        CHECK(player.engine.scalars() == scalars);
        CHECK_FALSE(watch.compare(held_by(player.engine)).has_value());
        mine.push_back(player.step(2));
        CHECK_FALSE(equal(copy_of(player.engine), before));
        CHECK_FALSE(watch.compare(held_by(player.engine)).has_value());
      },
      [&](int rank, auto model, const recipe::Recipe& sized) {
        auto task = std::make_unique<Unlucky>(model, sized);
        task->bad_step = rank == unlucky ? 1 : -1;
        return task;
      });
  for (const auto& mine : outcomes) {
    CHECK(mine[0].applied);
    CHECK_FALSE(mine[1].applied);
    CHECK(mine[1].culprit.ends_with("embed_tokens.weight"));  // the first it spoils
    CHECK(std::isfinite(mine[1].loss));
    CHECK(mine[1].loss == outcomes[0][1].loss);
    CHECK(mine[2].applied);
    CHECK(std::isfinite(mine[2].grad_norm));
    CHECK(mine[2].loss == outcomes[0][2].loss);
  }
}

struct Case {
  int workers;
  Set set;
};

const std::vector<Case>& layouts() {
  static const std::vector<Case> all = {
      {2, [](auto& p) { p.engine = "replicated"; }},
      {2, [](auto& p) { p.tensor = 2; }},
      {2, [](auto& p) { p.tensor = 2, p.sequence_parallel = false; }},
      {2, [](auto& p) { p.context = 2; }},
      {2, [](auto& p) { p.pipeline = 2; }},
      {2, [](auto& p) { p.zero = 1; }},
      {2, [](auto& p) { p.zero = 2; }},
      {2, [](auto& p) { p.zero = 3; }},
      {4, [](auto& p) { p.zero = 3, p.pipeline = 2; }},
      {4, [](auto& p) { p.zero = 2, p.shard = 2, p.overlap = false; }},
      {4, [](auto& p) { p.tensor = 2, p.context = 2; }}};
  return all;
}

TEST_CASE("mishap: a gradient that is not finite on one rank: all skip the step and go on") {
  for (const Case& one : layouts())
    for (int rank = 0; rank < one.workers; rank += one.workers - 1)
      check_skipped(layout("llama", one.workers, one.set), rank);
  for (const int rank : {0, 1})
    check_skipped(layout("moe", 2, [](auto& p) { p.expert = 2; }), rank);
}

using Change = Player::Change;

// Two steps whose batches were changed.
Run changed(const recipe::Recipe& recipe, const Change& change) {
  Run run;
  std::vector<std::vector<StateTensor>> states(static_cast<std::size_t>(recipe.parallel.workers));
  play(
      recipe,
      [&](const Player& player) {
        for (std::int64_t step = 0; step < 2; ++step) {
          const auto outcome = player.step(step, change);
          CHECK(outcome.applied);
          if (player.rank == 0) run.outcomes.push_back(outcome);
        }
        for (StateTensor tensor : player.engine.state()) {
          tensor.value = tensor.value.clone();
          states[static_cast<std::size_t>(player.rank)].push_back(std::move(tensor));
        }
      },
      {}, torch::kDouble);
  for (StateTensor& tensor : parallel::assemble(states)) run.state[tensor.name] = tensor.value;
  return run;
}

// Whatever the layout, what one process makes of it.
void check_like_one(const std::string& kind, const Change& change, bool all) {
  const Run one = changed(layout(kind, 1, [](auto& p) { p.engine = "replicated"; }), change);
  for (const auto& outcome : one.outcomes) {
    CHECK(std::isfinite(outcome.loss));
    CHECK((outcome.count == 0) == all);
    if (all) CHECK(outcome.loss == 0);
  }
  for (const auto& [name, value] : one.state) CHECK(value.isfinite().all().item<bool>());
  for (const Case& layout_case : layouts()) {
    const recipe::Recipe recipe = layout(kind, layout_case.workers, layout_case.set);
    INFO(text_of(recipe));
    const auto [worst, where] = difference(changed(recipe, change), one);
    CHECK_MESSAGE(worst < 1e-6, where);
  }
}

TEST_CASE("mishap: ranks whose micro-batches have no target, as one process has it") {
  const auto drop = [](parallel::Batch& batch) { batch[1].fill_(-1); };
  const Change late = [&](std::int64_t id, parallel::Batch& batch) {  // of the last data rank
    if (id >= 2) drop(batch);
  };
  const Change odd = [&](std::int64_t id, parallel::Batch& batch) {  // the same where ids are dealt
    if (id % 2) drop(batch);
  };
  // Of the first context rank, whose tokens are the first and the last quarter.
  const Change outer = [](std::int64_t, parallel::Batch& batch) {
    batch[1].narrow(1, 0, sequence / 4 + 1).fill_(-1);
    batch[1].narrow(1, sequence - sequence / 4 - 1, sequence / 4 + 1).fill_(-1);
  };
  for (const Change& change : {late, odd, outer}) check_like_one("llama", change, false);
  check_like_one("moe", odd, false);
}

TEST_CASE("mishap: no target at all: the loss is 0 and nothing is NaN") {
  const Change none = [](std::int64_t, parallel::Batch& batch) { batch[1].fill_(-1); };
  check_like_one("llama", none, true);
}

TEST_CASE("mishap: an expert that no token chooses has gradient zero, and only decays") {
  constexpr std::int64_t lonely = 3;
  const std::string layer = "model.layers.1.mlp.";
  for (const Set& set :
       {Set([](auto& p) { p.engine = "replicated"; }), Set([](auto& p) { p.expert = 2; }),
        Set([](auto& p) { p.expert_tensor = 2, p.zero = 1; }), Set([](auto& p) { p.zero = 3; })}) {
    const recipe::Recipe recipe = layout("moe", 2, set);
    INFO(text_of(recipe));
    std::vector<std::vector<StateTensor>> gradients(2), states(2);
    std::map<std::string, torch::Tensor> before;
    play(
        recipe,
        [&](const Player& player) {
          const auto at = static_cast<std::size_t>(player.rank);
          CHECK(player.step(0).applied);
          for (auto* kept : {&gradients[at], &states[at]})
            for (StateTensor tensor :
                 kept == &states[at] ? player.engine.state() : player.engine.gradients()) {
              tensor.value = tensor.value.clone();
              kept->push_back(std::move(tensor));
            }
        },
        [&](int rank, auto model, const recipe::Recipe& sized) {
          auto task = std::make_unique<LanguageTask>(model, sized);
          task->module().named_buffers()[layer + "router.bias"][lonely] = -1e6;
          if (rank == 0)
            for (const auto& named : task->module().named_parameters())
              before["model/" + named.key()] = named.value().detach().clone();
          return task;
        });
    int seen = 0;
    for (const StateTensor& tensor : parallel::assemble(gradients))
      if (tensor.name.starts_with(layer + "experts.")) {
        ++seen;
        CHECK_MESSAGE(tensor.value[lonely].eq(0).all().item<bool>(), tensor.name);
        CHECK_MESSAGE(tensor.value.abs().sum().item<double>() > 0, tensor.name);
      }
    CHECK(seen == 3);
    const double decay = 1 - 0.02 * recipe.optimizer.weight_decay;
    for (const StateTensor& tensor : parallel::assemble(states)) {
      CHECK_MESSAGE(tensor.value.isfinite().all().item<bool>(), tensor.name);
      if (tensor.name.starts_with("model/" + layer + "experts.")) {
        const torch::Tensor expected = before.at(tensor.name)[lonely] * decay;
        CHECK_MESSAGE(torch::allclose(tensor.value[lonely], expected, 1e-6, 1e-8), tensor.name);
      }
    }
  }
}

}  // namespace
}  // namespace tutti::train
