// Against numbers worked out by hand or published.
#include "plan/memory.h"

#include <doctest/doctest.h>

#include "base/error.h"

using namespace tutti;
using namespace tutti::plan;
using doctest::Approx;
using recipe::Model;
using recipe::Recipe;

namespace {

Model gpt3() {
  Model m;
  m.family = "gpt2";
  m.layers = 96;
  m.embed = 12288;
  m.heads = m.kv_heads = 96;
  m.head_dim = 128;
  m.mlp = 4 * 12288;
  m.vocab = 51200;
  return m;
}

std::int64_t count_of(const Recipe& r) { return parameters_of(r, make_layout(r), 0).all(); }

Recipe mesh(int workers) {
  Recipe r;
  r.parallel.engine = "mesh";
  r.parallel.workers = workers;
  r.model.vocab = 300;
  r.model.kv_heads = 4;
  r.batch.global = 16 * workers;
  r.batch.micro = 2;
  return r;
}

RankMemory memory(const Recipe& r, int rank = 0) { return memory_of(r, make_layout(r), rank); }

}  // namespace

// Figure 1: 7.5 billion parameters, 64 ranks, mixed precision with Adam: 120, 31.4, 16.6, 1.9 GB.
TEST_CASE("memory: ZeRO's published example") {
  const auto gigabytes = [](int stage) {
    const StateBytes b = zero_shared({2, 2, 12}, stage, 64);
    return 7.5 * (b.parameter + b.gradient + b.optimizer);
  };
  CHECK(gigabytes(0) == 120);
  CHECK(gigabytes(1) == Approx(31.4).epsilon(0.001));
  CHECK(gigabytes(2) == Approx(16.64).epsilon(0.001));
  CHECK(gigabytes(3) == 1.875);
}

// With s = 2048, b = 1, h = 12288, a = 96: sbh = 25,165,824 and 5as/h = 80.
TEST_CASE("memory: the published activations of a layer of GPT-3") {
  const double sbh = 25165824;
  const Kept kept{2, 1, 5};  // a mask's byte; a score, its copy and their mask
  const auto bytes = [&](int tensor, bool rows) {
    return layer_bytes(gpt3(), 1, 2048, kept, tensor, rows);
  };
  CHECK(bytes(1, false) == sbh * (34 + 80));                 // equation 1
  CHECK(bytes(8, false) == sbh * (10 + 24 / 8. + 80 / 8.));  // equation 2
  CHECK(bytes(8, true) == sbh / 8 * (34 + 80));              // equation 4
  const Kept gathered{2, 1, 5, true};                        // 4 of the 34 whole on each rank
  CHECK(layer_bytes(gpt3(), 1, 2048, gathered, 8, true) == sbh * (4 + (30 + 80) / 8.));
}

// Equation 5: with 1f1b the first rank holds as many layers' activations as the model has;
// interleaved 1 + (p - 1) / (p m) times that.
TEST_CASE("memory: activations of a pipeline") {
  Recipe r = mesh(4);
  r.parallel.pipeline = 4;
  r.model.layers = 16;
  const Model m = [&] {
    Model sized = r.model;
    sized.head_dim = 32;
    sized.mlp = 688;
    return sized;
  }();
  const double layer = layer_bytes(m, 2, 256, {4});
  CHECK(memory(r, 0).activations == Approx(16 * layer));
  CHECK(memory(r, 1).activations == Approx(12 * layer));
  CHECK(memory(r, 3).activations == Approx(4 * layer + 2 * 2 * 256 * 256 * 4));  // last norm
  r.parallel.pipeline_schedule = "interleaved";
  r.parallel.pipeline_chunks = 2;
  CHECK(memory(r, 0).activations == Approx(16 * layer * (1 + 3 / 8.)));
  r.parallel.pipeline_schedule = "gpipe";
  r.parallel.pipeline_chunks = 1;
  CHECK(memory(r, 0).activations == Approx(4 * layer * 32));  // all micro-batches
  r.recompute = "full";
  CHECK(memory(r, 0).activations == Approx(4 * 32 * (2 * 2 * 256 * 256 * 4) + layer));
}

TEST_CASE("memory: parameters of models whose number is known") {
  Recipe r;
  r.model.family = "gpt2";
  r.model.layers = 12, r.model.embed = 768, r.model.heads = 12, r.model.vocab = 50257;
  r.model.context = 1024, r.model.tied = true;
  CHECK(count_of(r) == 124439808);  // GPT-2

  r.model = Model();
  r.model.layers = 32, r.model.embed = 4096, r.model.heads = 32, r.model.vocab = 32000;
  r.model.mlp = 11008;
  CHECK(count_of(r) == 6738415616);  // Llama 2 7B

  r.model.kv_heads = 8, r.model.moe.experts = 8, r.model.moe.expert_mlp = 14336;
  CHECK(count_of(r) == 46702792704);  // Mixtral 8x7B

  r.model = Model();
  r.model.layers = 28, r.model.embed = 1024, r.model.heads = 16, r.model.kv_heads = 8;
  r.model.head_dim = 128, r.model.mlp = 3072, r.model.vocab = 151936;
  r.model.tied = r.model.qk_norm = true;
  CHECK(count_of(r) == 596049920);  // Qwen 3 0.6B
}

TEST_CASE("memory: the ranks' parts are the model, save what all of them hold") {
  Recipe r = mesh(12);
  r.model.layers = 7;
  r.model.moe.experts = 5, r.model.moe.expert_mlp = 30, r.model.moe.dense_layers = 2;
  r.model.moe.shared_experts = 1;
  const ParameterCount whole = parameters_of(r, make_layout(r), 0);
  r.parallel.tensor = 3;  // uneven: 4 key heads
  r.parallel.pipeline = 2;
  r.parallel.expert = 2;
  r.parallel.expert_tensor = 3;
  const Layout layout = make_layout(r);
  ParameterCount sum;
  for (int rank = 0; rank < 12; ++rank) {
    const ParameterCount part = parameters_of(r, layout, rank);
    if (layout.data_rank(rank) == 0) sum.dense += part.dense;
    if (layout.experts.coordinate(rank, "expert_replica") == 0) sum.experts += part.experts;
  }
  CHECK(sum.experts == whole.experts);
  // Norms, routers: on each of three ranks.
  CHECK(sum.dense - whole.dense == 2 * ((2 * 7 + 1) * 256 + 5 * 5 * 256));
  r.parallel.tensor = r.parallel.expert = r.parallel.expert_tensor = 1;
  r.model.tied = true;
  const Layout cut = make_layout(r);
  CHECK(parameters_of(r, cut, 0).all() + parameters_of(r, cut, 11).all() - whole.all() == 0);
}

TEST_CASE("memory: bytes of a small model, by hand") {
  Recipe r = mesh(1);
  r.batch.global = 2;
  const double n = static_cast<double>(count_of(r));
  CHECK(memory(r).parameters == 4 * n);
  CHECK(memory(r).gradients == 4 * n);
  CHECK(memory(r).optimizer == 8 * n);
  CHECK(memory(r).working == 2 * 256 * 688 * 4);  // a row as wide as the mlp, for each token
  CHECK(memory(r).total() == 16 * n + memory(r).activations + memory(r).working);
  r.batch.global = 8;  // four micro-batches: three levels of the tree
  CHECK(memory(r).gradients == 12 * n);
  r.reproducible = false;
  CHECK(memory(r).gradients == 4 * n);
  r.precision = "bf16";
  CHECK(memory(r).parameters == 2 * n);
  CHECK(memory(r).optimizer == 12 * n);  // and a master copy
  r.optimizer.state = "bf16";
  CHECK(memory(r).optimizer == 8 * n);
  r.optimizer.name = "muon";
  CHECK(memory(r).optimizer == 10 * n);
  r.optimizer.name = "sgd";
  CHECK(memory(r).optimizer == 6 * n);
  r.optimizer.state = "fp32";
  CHECK(memory(r).optimizer == 8 * n);
}

TEST_CASE("memory: each ZeRO stage holds less, and as much less as it should") {
  Recipe r = mesh(4);
  r.reproducible = false;
  const double n = static_cast<double>(count_of(r));
  r.parallel.zero = 1;
  CHECK(memory(r).optimizer == 12 * n / 4);  // the shard's fp32 beside all parameters
  CHECK(memory(r).gradients == 4 * n + n);
  r.parallel.compress = "int8";
  CHECK(memory(r).gradients == 13 * n);
  r.parallel.zero = 0;
  CHECK(memory(r).gradients == 14 * n);
  r.parallel.compress = "topk";
  CHECK(memory(r).gradients == 12 * n);
  r.parallel.compress = "none";
  r.parallel.zero = 2;
  CHECK(memory(r).gradients == 2 * n);
  CHECK(memory(r).parameters == 4 * n);
  r.parallel.zero = 3;
  CHECK(memory(r).parameters == n);
  CHECK(memory(r).optimizer == 2 * n);
  r.parallel.shard = 2;
  CHECK(memory(r).parameters == 2 * n);
  r.model.moe.experts = 4;
  r.parallel.expert = 4;  // nobody else has them: nothing to share
  const ParameterCount count = parameters_of(r, make_layout(r), 0);
  CHECK(memory(r).parameters ==
        Approx(4 * (static_cast<double>(count.dense) / 2 + static_cast<double>(count.experts))));
}

TEST_CASE("memory: tensor, context and recomputation lessen activations") {
  Recipe r = mesh(4);
  const double whole = memory(r).activations;
  r.parallel.context = 4;
  const double norm = 2 * 2 * 256 * 256 * 4;
  CHECK(memory(r).activations == Approx(whole / 4));
  r.parallel.context = 1;
  r.parallel.tensor = 4;
  const double rows = memory(r).activations;
  r.parallel.sequence_parallel = false;
  CHECK(rows < memory(r).activations);
  CHECK(memory(r).activations < whole);
  r.parallel.tensor = 1;
  r.recompute = "full";
  CHECK(memory(r).activations == Approx(4 * norm + (whole - norm) / 4 + norm));
}

TEST_CASE("memory: layers are recomputed by kind and by number") {
  using recipe::Recompute;
  Recipe r = mesh(2);
  r.parallel.pipeline = 2;
  r.model.layers = 5;  // 3 and 2
  r.recompute = "1";
  const auto of = [&] { return recompute_of(r, make_layout(r)); };
  constexpr Recompute none = Recompute::none, some = Recompute::selective, full = Recompute::full;
  CHECK(of() == std::vector{full, none, none, full, none});
  r.recompute = "3";
  CHECK(of() == std::vector(5, full));
  r.recompute = "selective";
  CHECK(of() == std::vector(5, some));
}

TEST_CASE("memory: auto recomputes the least that fits the budget") {
  using recipe::Recompute;
  Recipe r = mesh(1);
  const auto cost = [](const std::vector<Recompute>& kinds) {
    int sum = 0;
    for (const Recompute kind : kinds) sum += static_cast<int>(kind);
    return sum;
  };
  const double most = memory(r).total();
  r.recompute = "full";
  const double least = memory(r).total();
  r.recompute = "auto";
  int last = 0;
  for (int tenth = 10; tenth >= 0; --tenth) {
    r.memory_budget = static_cast<std::int64_t>(least + (most - least) * tenth / 10);
    const int now = cost(recompute_of(r, make_layout(r)));
    CHECK(memory(r).total() <= static_cast<double>(r.memory_budget));
    CHECK(now >= last);
    CHECK((now == 0) == (tenth == 10));
    last = now;
  }
  CHECK(last == 8);  // four layers, whole
  r.memory_budget -= 1;
  CHECK_THROWS_AS(recompute_of(r, make_layout(r)), ConfigError);
}
