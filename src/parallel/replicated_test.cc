// The replicated engine beside plain autograd over the whole batch, and beside itself on other
// numbers of ranks.
#include "parallel/replicated.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "nn/ops.h"
#include "testing/ranks.h"

using namespace tutti;
using namespace tutti::parallel;

namespace {

constexpr std::int64_t micro_batches = 6, rows = 3;

// Has all that an engine meets: weights that the gradient sink serves (nn::linear) and that
// autograd serves, one used twice by the latter, one by both, one used by some micro-batches only,
// one never used.
struct Net : torch::nn::Module {
  explicit Net(torch::ScalarType type) {
    const auto make = [&](const char* name, std::vector<std::int64_t> shape) {
      std::int64_t count = 1;
      for (const std::int64_t size : shape) count *= size;
      const auto values = torch::arange(count, torch::kDouble).mul(0.7).sin().mul(0.4);
      return register_parameter(name, values.view(shape).to(type).clone());
    };
    in = make("in", {8, 5});
    twice = make("twice", {8, 8});
    again = make("again", {8, 8});
    sometimes = make("sometimes", {8});
    never = make("never", {3});
    frozen = make("frozen", {4});
    frozen.set_requires_grad(false);
    seen = register_buffer("seen", torch::zeros({1}));
    out = make("out", {2, 8});
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen += x.abs().sum().to(torch::kFloat).detach();  // as running statistics do
    torch::Tensor h = fused ? nn::linear(x, {{in, {}}}) : torch::matmul(x, in.t());
    h = torch::tanh(h);
    h = torch::tanh(torch::matmul(h, twice) + torch::matmul(h, twice.t()));
    const auto turn = [&](const torch::Tensor& v) {
      return fused ? nn::linear(v, {{again, {}}}) : torch::matmul(v, again.t());
    };
    h = torch::tanh(turn(turn(h)) + torch::matmul(h, again));
    if (x[0][0].item<double>() > 0) h = h * (1 + sometimes);
    return fused ? nn::linear(h, {{out, {}}}) : torch::matmul(h, out.t());
  }
  bool fused = true;
  torch::Tensor in, twice, again, sometimes, never, frozen, seen, out;
};

struct NetTask : Task {
  explicit NetTask(torch::ScalarType type = torch::kFloat) : net(type) {}
  torch::nn::Module& module() override { return net; }
  Loss loss(const Batch& batch) override {
    const auto wrong =
        (net.forward(batch[0].to(net.in.scalar_type())) - batch[1]).to(torch::kFloat);
    return {(wrong.square() * batch[2]).sum(), batch[2].sum().item<double>()};
  }
  Net net;
};

// Micro-batch `id` of step `step`; its targets are of unequal numbers, also none.
Batch batch_of(std::int64_t step, std::int64_t id, torch::ScalarType type) {
  const auto wave = [&](std::int64_t columns, double pace) {
    return (torch::arange(rows * columns, torch::kDouble) +
            static_cast<double>(step * 100 + id * 7))
        .mul(pace)
        .sin()
        .view({rows, columns})
        .to(type);
  };
  const auto mask = (torch::arange(rows) < id % 4).to(type).unsqueeze(1).expand({rows, 2});
  return {wave(5, 1.3), wave(2, 0.9), mask.contiguous()};
}

recipe::Recipe recipe_for(std::int64_t micro_count = micro_batches) {
  recipe::Recipe recipe;
  recipe.batch = {micro_count * rows, rows};
  recipe.optimizer.name = "adamw";
  recipe.optimizer.clip = 0.1;
  return recipe;
}

constexpr const char* statistics = "model/seen";

struct Seen {
  std::vector<StepOutcome> outcomes;
  std::vector<StateTensor> state;
  std::string scalars;
};

using Change = std::function<void(int rank, StepInput&)>;

StepInput input_of(std::int64_t step) {
  StepInput input;
  input.step = step;
  input.lr = 0.05;
  input.batches = [step](std::int64_t id) { return batch_of(step, id, torch::kFloat); };
  return input;
}

void on_ranks(int ranks, const std::function<void(int, std::shared_ptr<collective::Group>)>& body) {
  auto groups = collective::make_thread_groups(ranks);
  testing::run_members(groups, [&](int rank, collective::Group&) {
    body(rank, groups[static_cast<std::size_t>(rank)]);
  });
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Some steps on `ranks` threads; what the last rank saw. That all saw the same is checked.
Seen run(const recipe::Recipe& recipe, int ranks, std::int64_t steps = 3,
         const Change& change = {}) {
  std::vector<Seen> all(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<NetTask>> tasks;
  for (int rank = 0; rank < ranks; ++rank) {
    tasks.push_back(std::make_unique<NetTask>());
    if (rank > 0)
      torch::NoGradGuard(), tasks.back()->net.in.data().zero_(), tasks.back()->net.frozen.zero_();
  }
  on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
    const auto at = static_cast<std::size_t>(rank);
    ReplicatedEngine engine(recipe, *tasks[at], group);
    for (std::int64_t step = 0; step < steps; ++step) {
      StepInput input = input_of(step);
      if (change) change(rank, input);
      all[at].outcomes.push_back(engine.step(input));
    }
    for (const StateTensor& tensor : engine.state())
      all[at].state.push_back({tensor.name, tensor.value.clone()});
    all[at].scalars = engine.scalars();
  });
  for (const Seen& seen : all) {
    CHECK(seen.scalars == all[0].scalars);
    for (std::size_t i = 0; i < seen.state.size(); ++i)
      CHECK_MESSAGE(seen.state[i].value.equal(all[0].state[i].value), seen.state[i].name);
    for (std::size_t i = 0; i < seen.outcomes.size(); ++i) {
      CHECK(same(seen.outcomes[i].loss, all[0].outcomes[i].loss));
      CHECK(same(seen.outcomes[i].grad_norm, all[0].outcomes[i].grad_norm));
    }
  }
  // Running statistics are rank 0's: the same everywhere, but not on other numbers of ranks.
  std::erase_if(all.back().state,
                [](const StateTensor& tensor) { return tensor.name == statistics; });
  return all.back();
}

void check_same(const Seen& a, const Seen& b) {
  REQUIRE(a.state.size() == b.state.size());
  for (std::size_t i = 0; i < a.state.size(); ++i) {
    CHECK(a.state[i].name == b.state[i].name);
    CHECK_MESSAGE(a.state[i].value.equal(b.state[i].value), a.state[i].name);
  }
  REQUIRE(a.outcomes.size() == b.outcomes.size());
  for (std::size_t i = 0; i < a.outcomes.size(); ++i) {
    CHECK(a.outcomes[i].loss == b.outcomes[i].loss);
    CHECK(a.outcomes[i].grad_norm == b.outcomes[i].grad_norm);
    CHECK(a.outcomes[i].count == b.outcomes[i].count);
  }
}

const torch::Tensor& find(const Seen& seen, const std::string& name) {
  for (const StateTensor& tensor : seen.state)
    if (tensor.name == name) return tensor.value;
  FAIL("no tensor " << name);
  return seen.state[0].value;
}

}  // namespace

TEST_CASE("replicated: losses, norm and update are those of plain autograd over the whole batch") {
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

TEST_CASE("replicated: the bits do not depend on ranks, buckets and overlap") {
  for (const char* optimizer : {"adamw", "muon", "sgd"}) {
    recipe::Recipe recipe = recipe_for();
    recipe.optimizer.name = optimizer;
    const Seen one = run(recipe, 1);
    for (const int ranks : {2, 3, 4, 5, 6, 7}) {  // 4 and 5 share unevenly, of 7 one has nothing
      recipe.parallel.bucket_bytes = ranks % 2 ? 64 : 1 << 20;
      recipe.parallel.overlap = ranks < 4;
      INFO(optimizer << " on " << ranks << " ranks");
      check_same(one, run(recipe, ranks));
    }
  }
  recipe::Recipe other = recipe_for();
  other.seed = 5;
  CHECK_FALSE(find(run(recipe_for(), 1), "model/in").equal(find(run(other, 1, 2), "model/in")));
}

TEST_CASE("replicated: without reproducibility the numbers are near") {
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

TEST_CASE("replicated: one bad gradient updates nothing anywhere and is named") {
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

TEST_CASE("replicated: fp16 lowers its scale until the gradients fit, bf16 and fp16 keep masters") {
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

TEST_CASE("replicated: any rank's wish to stop is everyone's, rank 0's clock is everyone's") {
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

TEST_CASE("replicated: a state that is written back goes on to the same bits") {
  recipe::Recipe recipe = recipe_for();
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    recipe.precision = precision;
    const Seen whole = run(recipe, 1, 5), first = run(recipe, 2, 3);
    NetTask task;
    ReplicatedEngine engine(recipe, task, collective::make_thread_groups(1)[0]);
    auto state = engine.state();
    std::erase_if(state, [](const StateTensor& tensor) { return tensor.name == statistics; });
    for (const StateTensor& tensor : state) tensor.value.copy_(find(first, tensor.name));
    engine.set_scalars(first.scalars);
    engine.restored();
    for (std::int64_t step = 3; step < 5; ++step) engine.step(input_of(step));
    for (std::size_t i = 0; i < state.size(); ++i)
      CHECK_MESSAGE(state[i].value.equal(whole.state[i].value), state[i].name << " " << precision);
  }
}

TEST_CASE("replicated: an evaluation is the same on any number of ranks and changes nothing") {
  std::vector<double> losses;
  for (const int ranks : {1, 2, 5})
    on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
      NetTask task;
      ReplicatedEngine engine(recipe_for(), task, group);
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

TEST_CASE("replicated: a peer that is lost ends the step with an error, and nothing was updated") {
  torch::Tensor before, after;
  CHECK_THROWS_WITH_AS(on_ranks(3,
                                [&](int rank, const std::shared_ptr<collective::Group>& group) {
                                  NetTask task;
                                  ReplicatedEngine engine(recipe_for(), task, group);
                                  if (rank == 2) throw WorldError("lost");
                                  if (rank == 0) before = engine.state()[0].value.clone();
                                  try {
                                    engine.step(input_of(0));
                                  } catch (...) {
                                    if (rank == 0) after = engine.state()[0].value.clone();
                                    throw;
                                  }
                                }),
                       doctest::Contains("rank 2 failed"), WorldError);
  REQUIRE(after.defined());
  CHECK(after.equal(before));
}

TEST_CASE("flat: pieces do not overlap, gaps stay zero, buckets hold each piece once") {
  NetTask task;
  FlatParameters flat(task.net, torch::kFloat);
  std::int64_t end = 0;
  for (const Piece& piece : flat.pieces()) {
    CHECK(piece.offset % 16 == 0);
    CHECK(piece.offset >= end);
    end = piece.offset + piece.size;
    CHECK(FlatParameters::view(flat.master(), piece).data_ptr() == piece.parameter.data_ptr());
  }
  CHECK(flat.size() >= end);
  for (const std::int64_t bytes : {1, 100, 200, 1 << 20}) {
    std::size_t next = flat.pieces().size();
    std::int64_t offset = flat.size();
    for (const Bucket& bucket : make_buckets(flat.pieces(), flat.size(), bytes, 4)) {
      CHECK(bucket.end_piece == next);
      CHECK(bucket.first_piece < bucket.end_piece);
      CHECK(bucket.offset + bucket.size == offset);
      next = bucket.first_piece;
      offset = bucket.offset;
    }
    CHECK(next == 0);
    CHECK(offset == 0);
  }
}
