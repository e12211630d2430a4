// The mesh engine beside plain autograd over the whole batch, and beside itself: ZeRO stages and
// hybrid sharding over any number of ranks give the same bits.
#include "parallel/mesh_engine.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "parallel/sample_task.h"

namespace tutti::parallel {
namespace {

std::string text_of(const recipe::Recipe& recipe, int ranks) {
  const recipe::Parallel& p = recipe.parallel;
  return str(recipe.optimizer.name, ", ", ranks, " ranks, zero ", p.zero, ", shard ", p.shard,
             ", buckets of ", p.bucket_bytes, p.overlap ? ", overlap" : "");
}

TEST_CASE("mesh: every ZeRO stage and hybrid shard has the bits of one rank") {
  for (const char* optimizer : {"adamw", "muon", "sgd"}) {
    recipe::Recipe recipe = recipe_for();
    recipe.optimizer.name = optimizer;
    const Seen one = run(recipe, 1);
    for (int zero = 0; zero <= 3; ++zero)
      for (const int ranks : {1, 2, 3, 4, 7})
        for (const int shard : {0, 2}) {
          if (shard && (zero == 0 || ranks % shard)) continue;
          recipe.parallel.zero = zero;
          recipe.parallel.shard = shard;
          recipe.parallel.bucket_bytes = ranks % 2 ? 64 : 1 << 20;
          recipe.parallel.overlap = ranks < 4;
          INFO(text_of(recipe, ranks));
          check_same(one, run(recipe, ranks));
        }
  }
  recipe::Recipe other = recipe_for();
  other.seed = 5;
  CHECK_FALSE(find(run(recipe_for(), 1), "model/in").equal(find(run(other, 1, 2), "model/in")));
}

TEST_CASE("mesh: losses, norm and update are those of plain autograd over the whole batch") {
  recipe::Recipe recipe = recipe_for();
  recipe.optimizer = {
      .name = "sgd", .lr = 1, .weight_decay = 0, .momentum = 0, .nesterov = false, .clip = 0};
  const Seen seen = run(recipe, 2, 1);

  NetTask twin(torch::kDouble);
  twin.net.fused = false;
  torch::Tensor sum = torch::zeros({}, torch::kDouble);
  double count = 0;
  for (std::int64_t id = 0; id < micro_batches; ++id) {
    const Batch batch = batch_of(0, id, torch::kDouble);
    const auto wrong = twin.net.forward(batch[0]) - batch[1];
    sum = sum + (wrong.square() * batch[2]).sum();
    count += batch[2].sum().item<double>();
  }
  (sum / count).backward();
  double norm = 0;
  for (const auto& named : twin.net.named_parameters()) {
    torch::Tensor expected = named.value().detach();
    if (named.value().grad().defined()) {
      norm += named.value().grad().square().sum().item<double>();
      expected = expected - 0.05 * named.value().grad();
    }
    CHECK_MESSAGE(torch::allclose(find(seen, "model/" + named.key()).to(torch::kDouble), expected,
                                  1e-5, 1e-6),
                  named.key());
  }
  CHECK(seen.outcomes[0].count == count);
  CHECK(seen.outcomes[0].loss == doctest::Approx((sum / count).item<double>()).epsilon(1e-5));
  CHECK(seen.outcomes[0].grad_norm == doctest::Approx(std::sqrt(norm)).epsilon(1e-5));
}

TEST_CASE("mesh: without reproducibility the numbers are near") {
  recipe::Recipe recipe = recipe_for();
  const Seen exact = run(recipe, 1);
  recipe.reproducible = false;
  for (const int ranks : {1, 2, 3, 7}) {  // of 7 one has nothing to do
    INFO(ranks << " ranks");
    const Seen seen = run(recipe, ranks);
    for (std::size_t i = 0; i < exact.state.size(); ++i)
      CHECK_MESSAGE(torch::allclose(seen.state[i].value, exact.state[i].value, 1e-4, 1e-5),
                    exact.state[i].name);
  }
}

TEST_CASE("mesh: one bad gradient updates nothing anywhere and is named") {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Change spoil = [bad](int, StepInput& input) {
      if (input.step != 1) return;
      const BatchSource good = input.batches;
      input.batches = [=](std::int64_t id) {
        Batch batch = good(id);
        if (id == 3) batch[0][1][2] = bad;
        return batch;
      };
    };
    const Seen before = run(recipe_for(), 1, 1);
    const Seen seen = run(recipe_for(), 3, 2, spoil);
    CHECK_FALSE(seen.outcomes[1].applied);
    CHECK(seen.outcomes[1].culprit == "in");
    for (std::size_t i = 0; i < before.state.size(); ++i)
      CHECK(seen.state[i].value.equal(before.state[i].value));
    CHECK(run(recipe_for(), 3, 3, spoil).outcomes[2].applied);
  }
}

TEST_CASE("mesh: fp16 lowers its scale until the gradients fit, bf16 and fp16 keep masters") {
  recipe::Recipe recipe = recipe_for();
  for (const char* precision : {"bf16", "fp16"}) {
    recipe.precision = precision;
    const Change large = [&](int, StepInput& input) {
      const BatchSource good = input.batches;
      input.batches = [good](std::int64_t id) {
        Batch batch = good(id);
        batch[1] = batch[1] * 100;
        return batch;
      };
    };
    const Seen seen = run(recipe, 2, 12, large);
    CHECK(seen.outcomes.back().applied);
    CHECK(std::string(find(seen, "model/in").dtype().name()) == "float");
    if (recipe.precision == "bf16") continue;
    CHECK_FALSE(seen.outcomes.front().applied);
    CHECK(seen.outcomes.back().loss_scale < 65536);
  }
}

TEST_CASE("mesh: a model that has nothing to train is refused") {
  NetTask task;
  for (const torch::Tensor& parameter : task.net.parameters()) parameter.set_requires_grad(false);
  CHECK_THROWS_WITH_AS(make_mesh(recipe_for(), task, collective::make_thread_groups(1)[0]),
                       "the model has no parameter that requires a gradient", ConfigError);
}

TEST_CASE("mesh: any rank's wish to stop is everyone's, rank 0's clock is everyone's") {
  for (const int asker : {0, 2}) {
    const Seen seen = run(recipe_for(), 3, 2, [=](int rank, StepInput& input) {
      input.stop = rank == asker && input.step == 1;
      input.elapsed = 10 + rank;
    });
    CHECK_FALSE(seen.outcomes[0].stop);
    CHECK(seen.outcomes[1].stop);
    CHECK(seen.outcomes[1].elapsed == 10);
  }
}

TEST_CASE("mesh: a state that is written back goes on to the same bits") {
  recipe::Recipe recipe = recipe_for();
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    recipe.precision = precision;
    const Seen whole = run(recipe, 1, 5), first = run(recipe, 2, 3);
    NetTask task;
    const auto owner = make_mesh(recipe, task, collective::make_thread_groups(1)[0]);
    Engine& engine = *owner;
    auto state = engine.state();
    std::erase_if(state, [](const StateTensor& tensor) { return tensor.name == statistics; });
    for (const StateTensor& tensor : state) tensor.value.copy_(find(first, tensor.name));
    engine.set_scalars(first.scalars);
    engine.restored();
    for (std::int64_t step = 3; step < 5; ++step) engine.step(input_of(step));
    CAPTURE(std::string(precision));
    for (const StateTensor& tensor : state)
      CHECK_MESSAGE(tensor.value.equal(find(whole, tensor.name)), tensor.name);
  }
}

TEST_CASE("mesh: an evaluation is the same on any number of ranks and changes nothing") {
  std::vector<double> losses;
  for (const int ranks : {1, 2, 5})
    on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
      NetTask task;
      const auto owner = make_mesh(recipe_for(), task, group);
      Engine& engine = *owner;
      const torch::Tensor before = task.net.in.clone();
      const double loss =
          engine.evaluate(4, [](std::int64_t id) { return batch_of(9, id, torch::kFloat); });
      CHECK(engine.evaluate(0, nullptr) == 0);
      CHECK(task.net.in.equal(before));
      CHECK(task.net.is_training());
      if (rank == ranks - 1) losses.push_back(loss);
    });
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0] == losses[2]);
  CHECK(losses[0] > 0);
}

TEST_CASE("mesh: a peer that is lost ends the step with an error, and nothing was updated") {
  torch::Tensor before, after;
  NetTask tasks[3];
  std::unique_ptr<Engine> engines[3];  // their groups outlive a rank that throws
  const auto body = [&](int rank, const std::shared_ptr<collective::Group>& group) {
    engines[rank] = make_mesh(recipe_for(), tasks[rank], group);
    if (rank == 2) throw WorldError("lost");
    if (rank == 0) before = engines[0]->state()[0].value.clone();
    try {
      engines[rank]->step(input_of(0));
    } catch (...) {
      if (rank == 0) after = engines[0]->state()[0].value.clone();
      throw;
    }
  };
  CHECK_THROWS_WITH_AS(on_ranks(3, body), doctest::Contains("rank 2 failed"), WorldError);
  REQUIRE(after.defined());
  CHECK(after.equal(before));
}

}  // namespace
}  // namespace tutti::parallel
