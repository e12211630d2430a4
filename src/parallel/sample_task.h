// What tests of engines share: a small task with all that an engine meets, steps of it on ranks
// that are threads, and what they saw.
#pragma once
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collective/group.h"
#include "nn/ops.h"
#include "parallel/cut.h"
#include "parallel/mesh_engine.h"
#include "recipe/recipe.h"
#include "testing/ranks.h"

namespace tutti::parallel {

inline constexpr std::int64_t micro_batches = 6, rows = 3;

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
    wide = make("wide", {1500, 8});  // larger than what a shard may be cut in
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
    h = h + (fused ? nn::linear(h, {{wide, {}}}) : torch::matmul(h, wide.t())).mean(1, true) * 0.5;
    if (x[0][0].item<double>() > 0) h = h * (1 + sometimes);
    return fused ? nn::linear(h, {{out, {}}}) : torch::matmul(h, out.t());
  }
  bool fused = true;
  torch::Tensor in, twice, again, wide, sometimes, never, frozen, seen, out;
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
inline Batch batch_of(std::int64_t step, std::int64_t id, torch::ScalarType type) {
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

inline recipe::Recipe recipe_for(std::int64_t micro_count = micro_batches) {
  recipe::Recipe recipe;
  recipe.batch = {micro_count * rows, rows};
  recipe.optimizer.name = "adamw";
  recipe.optimizer.clip = 0.1;
  return recipe;
}

inline constexpr const char* statistics = "model/seen";

struct Seen {
  std::vector<StepOutcome> outcomes;
  std::vector<StateTensor> state;
  std::string scalars;
};

using Change = std::function<void(int rank, StepInput&)>;

inline StepInput input_of(std::int64_t step) {
  StepInput input;
  input.step = step;
  input.lr = 0.05;
  input.batches = [step](std::int64_t id) { return batch_of(step, id, torch::kFloat); };
  return input;
}

inline void on_ranks(int ranks,
                     const std::function<void(int, std::shared_ptr<collective::Group>)>& body) {
  auto groups = collective::make_thread_groups(ranks);
  testing::run_members(groups, [&](int rank, collective::Group&) {
    body(rank, groups[static_cast<std::size_t>(rank)]);
  });
}

inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// The whole tensors of all ranks' states, by name. Checks that ranks
// that hold the same elements hold the same values, and that each element of a tensor that comes in
// pieces has one owner.
inline std::vector<StateTensor> assemble(const std::vector<std::vector<StateTensor>>& ranks) {
  std::map<std::string, std::array<torch::Tensor, 3>> whole;  // values, holders, owners
  for (const auto& state : ranks)
    for (const StateTensor& tensor : state) {
      auto& [values, holders, owners] = whole[tensor.name];
      const auto shape = tensor.global_shape();
      if (!values.defined()) {
        values = torch::zeros(shape, tensor.value.options());
        holders = torch::zeros(shape, torch::kInt);
        owners = torch::zeros(shape, torch::kInt);
      }
      const Box box = tensor.place();
      if (tensor.value.numel() == 0 || (tensor.value.dim() == 0 && !tensor.owned)) continue;
      torch::Tensor place = box_view(values, box), held = box_view(holders, box);
      CHECK_MESSAGE(torch::where(held > 0, place, tensor.value).equal(tensor.value), tensor.name);
      place.copy_(tensor.value);
      held.add_(1);
      if (tensor.box && tensor.owned) box_view(owners, box).add_(1);
      if (!tensor.box) owners.fill_(1);
    }
  std::vector<StateTensor> all;
  for (const auto& [name, parts] : whole) {
    all.push_back({name, parts[0]});
    CHECK_MESSAGE(parts[1].gt(0).all().item<bool>(), name);
    CHECK_MESSAGE(parts[2].eq(1).all().item<bool>(), name);
  }
  return all;
}

// As plan::make_layout, of a recipe without a language model; data ranks need not divide the
// micro-batches.
inline plan::Layout layout_of(const recipe::Recipe& recipe, int ranks) {
  const recipe::Parallel& p = recipe.parallel;
  const int pipeline = static_cast<int>(p.pipeline), context = static_cast<int>(p.context),
            tensor = static_cast<int>(p.tensor);
  const int data = ranks / (pipeline * context * tensor);
  const int shard = p.shard ? static_cast<int>(p.shard) : data;
  const int micro = static_cast<int>(recipe.batch.global / recipe.batch.micro);
  plan::Layout layout{DeviceMesh({{"pipeline", pipeline},
                                  {"replica", data / shard},
                                  {"shard", shard},
                                  {"context", context},
                                  {"tensor", tensor}},
                                 ranks),
                      DeviceMesh({{"pipeline", pipeline},
                                  {"expert_replica", data * context * tensor},
                                  {"expert", 1},
                                  {"expert_tensor", 1}},
                                 ranks),
                      plan::make_pipeline_schedule(p.pipeline_schedule, pipeline,
                                                   static_cast<int>(p.pipeline_chunks),
                                                   micro / data ? micro / data : 1),
                      {{0, 1}},
                      {{"heads", "tensor"},
                       {"kv_heads", "tensor"},
                       {"qkv", "tensor"},
                       {"mlp", "tensor"},
                       {"vocab", "tensor"}},
                      data,
                      shard,
                      data / shard};
  return layout;
}

inline std::unique_ptr<Engine> make_mesh(const recipe::Recipe& recipe, Task& task,
                                         std::shared_ptr<collective::Group> group) {
  const plan::Layout layout = layout_of(recipe, group->size());
  return std::make_unique<MeshEngine>(recipe, task, layout, std::move(group));
}

// Some steps on `ranks` threads; what the last rank saw, with the state of all. That all saw the
// same is checked.
inline Seen run(const recipe::Recipe& recipe, int ranks, std::int64_t steps = 3,
                const Change& change = {}) {
  std::vector<Seen> all(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<NetTask>> tasks;
  // Their groups outlive a rank that throws, so that its peers are told.
  std::vector<std::unique_ptr<Engine>> engines(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    tasks.push_back(std::make_unique<NetTask>());
    if (rank > 0)
      torch::NoGradGuard(), tasks.back()->net.in.data().zero_(), tasks.back()->net.frozen.zero_();
  }
  on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
    const auto at = static_cast<std::size_t>(rank);
    auto& engine = engines[at];
    engine = make_mesh(recipe, *tasks[at], group);
    for (std::int64_t step = 0; step < steps; ++step) {
      StepInput input = input_of(step);
      if (change) change(rank, input);
      all[at].outcomes.push_back(engine->step(input));
    }
    for (StateTensor tensor : engine->state()) {
      tensor.value = tensor.value.clone();
      all[at].state.push_back(std::move(tensor));
    }
    all[at].scalars = engine->scalars();
  });
  std::vector<std::vector<StateTensor>> states;
  for (const Seen& seen : all) {
    CHECK(seen.scalars == all[0].scalars);
    states.push_back(seen.state);
    for (std::size_t i = 0; i < seen.outcomes.size(); ++i) {
      CHECK(same(seen.outcomes[i].loss, all[0].outcomes[i].loss));
      CHECK(same(seen.outcomes[i].grad_norm, all[0].outcomes[i].grad_norm));
    }
  }
  all.back().state = assemble(states);
  // Running statistics are rank 0's: the same everywhere, but not on other numbers of ranks.
  std::erase_if(all.back().state,
                [](const StateTensor& tensor) { return tensor.name == statistics; });
  return all.back();
}

inline void check_same(const Seen& a, const Seen& b) {
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

inline const torch::Tensor& find(const Seen& seen, const std::string& name) {
  for (const StateTensor& tensor : seen.state)
    if (tensor.name == name) return tensor.value;
  FAIL("no tensor " << name);
  return seen.state[0].value;
}

}  // namespace tutti::parallel
