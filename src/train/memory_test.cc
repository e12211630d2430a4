// What ranks hold beside what plan/memory.h says they will. TUTTI_TABLE=1 prints docs/memory.md's
// table of it.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cmath>
#include <cstdio>

#include "plan/memory.h"
#include "plan/micro_batch.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

recipe::Recipe measured() {
  recipe::Recipe r = base("llama");
  r.model = recipe::Model();
  r.model.vocab = 37, r.model.layers = 3, r.model.embed = 128, r.model.heads = 4;
  r.model = nn::resolve(r.model, sequence);
  r.batch = {24, 2};
  r.parallel.engine = "mesh";
  return r;
}

struct Held {
  std::vector<parallel::StageParameters::Memory> ranks;
  std::vector<int> peaks;  // of activations of stages
};

Held hold(const recipe::Recipe& recipe) {
  const int ranks = static_cast<int>(recipe.parallel.workers);
  std::vector<std::unique_ptr<LanguageTask>> tasks;
  for (int rank = 0; rank < ranks; ++rank) {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    tasks.push_back(std::make_unique<LanguageTask>(model, recipe));
  }
  Held held;
  held.ranks.resize(tasks.size());
  held.peaks.resize(tasks.size());
  parallel::on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
    const auto at = static_cast<std::size_t>(rank);
    parallel::MeshEngine engine(recipe, *tasks[at], plan::make_layout(recipe), group);
    parallel::StepInput input;
    input.lr = 0.02;
    input.batches = [](std::int64_t id) { return batch_of(0, id); };
    engine.step(input);
    held.ranks[at] = engine.memory();
    held.peaks[at] = engine.peak_activations();
  });
  return held;
}

bool table() { return std::getenv("TUTTI_TABLE") != nullptr; }

void check_state(const recipe::Recipe& recipe) {
  INFO(text_of(recipe));
  const plan::Layout layout = plan::make_layout(recipe);
  const Held held = hold(recipe);
  const auto& p = recipe.parallel;
  for (int rank = 0; rank < p.workers; ++rank) {
    INFO("rank " << rank);
    const auto& is = held.ranks[static_cast<std::size_t>(rank)];
    const plan::RankMemory said = plan::memory_of(recipe, layout, rank);
    CHECK(static_cast<double>(is.parameters) == doctest::Approx(said.parameters).epsilon(0.1));
    CHECK(static_cast<double>(is.gradients) == doctest::Approx(said.gradients).epsilon(0.1));
    CHECK(static_cast<double>(is.optimizer) == doctest::Approx(said.optimizer).epsilon(0.1));
    if (!table() || rank > 0) continue;
    const auto kb = [](double bytes) { return std::lround(bytes / 1000); };
    std::printf("| %ld | %ld | %ld | %ld | %ld / %ld | %ld / %ld | %ld / %ld |\n", p.workers,
                p.pipeline, p.zero, layout.shard ? long(layout.shard) : 1L,
                kb(static_cast<double>(is.parameters)), kb(said.parameters),
                kb(static_cast<double>(is.gradients)), kb(said.gradients),
                kb(static_cast<double>(is.optimizer)), kb(said.optimizer));
  }
}

TEST_CASE("memory: what ranks hold is what the formulas say, for each ZeRO stage and shard") {
  recipe::Recipe recipe = measured();
  recipe::Parallel& p = recipe.parallel;
  for (p.workers = 1; p.workers <= 4; ++p.workers)
    for (p.zero = 0; p.zero <= 3; ++p.zero)
      for (p.shard = 0; p.shard <= 2; p.shard += 2) {
        if (p.shard >= p.workers) continue;   // as 0
        recipe.batch.global = 8 * p.workers;  // four micro-batches a rank: a whole tree
        if (legal(recipe)) check_state(recipe);
      }
}

TEST_CASE("memory: and in pipelines, whose waiting activations depend on no batch size") {
  recipe::Recipe recipe = measured();
  recipe::Parallel& p = recipe.parallel;
  for (p.workers = p.pipeline = 2; p.pipeline <= 3; p.workers = ++p.pipeline) {
    check_state(recipe);
    for (const std::int64_t micro_batches : {6, 12}) {
      recipe.batch.global = 2 * micro_batches;
      const Held held = hold(recipe);
      for (std::int64_t rank = 0; rank < p.pipeline; ++rank)
        CHECK(held.peaks[static_cast<std::size_t>(rank)] == p.pipeline - rank);
    }
    recipe.batch.global = 24;
  }
}

TEST_CASE("memory: experts that tensor ranks cut, and that ranks of their own hold") {
  recipe::Recipe recipe = measured();
  recipe.model.moe.experts = 4, recipe.model.moe.expert_mlp = 128;
  recipe.model = nn::resolve(recipe.model, sequence);
  recipe::Parallel& p = recipe.parallel;
  for (const std::int64_t tensor : {1, 2})
    for (const std::int64_t expert : {1, 2})
      for (p.zero = 0; p.zero <= 3; ++p.zero) {
        p.tensor = tensor, p.expert = expert, p.workers = 4;
        recipe.batch.global = 8 * p.workers / tensor;
        if (legal(recipe)) check_state(recipe);
      }
}

TEST_CASE("memory: moments in bf16 are half as large, in every ZeRO stage and in pipelines") {
  for (const char* optimizer : {"adamw", "sgd"}) {
    recipe::Recipe recipe = measured();
    recipe.optimizer.name = optimizer;
    recipe.optimizer.state = "bf16";
    recipe::Parallel& p = recipe.parallel;
    p.workers = 2;
    recipe.batch.global = 16;
    for (p.zero = 0; p.zero <= 3; ++p.zero) check_state(recipe);
    recipe.batch.global = 24;
    p.zero = 0, p.pipeline = 2;
    check_state(recipe);
  }
}

// Bytes of tensors on the CPU that the thread has made and not let go of, and the most of them.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now += size;
    most = std::max(most, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0, most = 0;
};

// What the engine holds and the most that tensors take besides in a step, operations' own buffers
// too.
double most_held(const recipe::Recipe& recipe) {
  auto model = nn::make_model(recipe.model);
  LanguageTask task(model, recipe);
  double bytes = 0;
  parallel::on_ranks(1, [&](int, const std::shared_ptr<collective::Group>& group) {
    at::set_num_threads(1);
    const auto engine = parallel::make_engine(recipe, task, group);
    parallel::StepInput input;
    input.batches = [&](std::int64_t) -> parallel::Batch {
      const auto tokens = torch::zeros({recipe.batch.micro, sequence}, torch::kLong);
      return {tokens, tokens};
    };
    engine->step(input);
    for (const StateTensor& tensor : engine->state())
      bytes += static_cast<double>(tensor.value.numel() * tensor.value.element_size());
    const plan::RankMemory said = plan::memory_of(recipe, plan::make_layout(recipe), 0);
    const auto count = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, count);
    engine->step(input);
    bytes += said.gradients + static_cast<double>(count->most);
  });
  return bytes;
}

TEST_CASE("memory: a run whose micro-batch was chosen stays below the budget") {
  recipe::Recipe recipe = measured();
  recipe.parallel = {};
  recipe.batch.global = 96;
  for (const char* recompute : {"none", "auto"})
    for (const std::int64_t megabytes : {24, 32, 48}) {
      CAPTURE(megabytes);
      recipe.recompute = recompute;
      recipe.batch.micro = 0;
      recipe.memory_budget = megabytes << 20;
      const plan::MicroBatch chosen = plan::choose_micro_batch(recipe);
      recipe.batch.micro = chosen.samples;
      const double held = most_held(recipe);
      CHECK(held < static_cast<double>(recipe.memory_budget));
      CHECK(held > 0.7 * chosen.bytes);
    }
}

}  // namespace
}  // namespace tutti::train
