// What backward computes again: the same bits, and as many bytes kept as plan/memory.h says.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <doctest/doctest.h>

#include "nn/model.h"
#include "plan/memory.h"

using namespace tutti;
using namespace tutti::nn;
using recipe::Recompute;
using torch::Tensor;

namespace {

const std::vector<Recompute> kinds = {Recompute::none, Recompute::selective, Recompute::full};

recipe::Model sized(const std::string& family, bool mixture = false) {
  recipe::Model c;
  c.family = family;
  c.vocab = 41, c.layers = 4, c.embed = 64, c.heads = 4;
  if (family != "gpt2") c.kv_heads = 2;
  c.tied = true;
  if (mixture) c.moe.experts = 4, c.moe.dense_layers = 1, c.moe.shared_experts = 1;
  if (mixture) c.moe.aux_loss = 0.1, c.moe.z_loss = 0.1;
  return resolve(c, 32);
}

TokenBatch batch_of(const recipe::Model& c) {
  torch::manual_seed(3);
  TokenBatch batch;
  batch.inputs = torch::randint(c.vocab, {3, 32}, torch::kLong);
  batch.targets = torch::randint(c.vocab, {3, 32}, torch::kLong);
  return batch;
}

// Bytes that the thread holds of tensors on the CPU.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0;
};

// Held by layers without embedding and head between forward and backward, with what goes in and
// comes out.
double kept(LanguageModel& model, const TokenBatch& batch) {
  const auto count = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, count);
  const std::int64_t before = count->now;
  const Tensor in = torch::zeros({batch.inputs.numel(), model.config().embed}).requires_grad_(true);
  const StageOutput out = model.run_stage({0, model.config().layers, false, false}, in, batch);
  return static_cast<double>(count->now - before);
}

std::vector<Tensor> outcome(LanguageModel& model, const TokenBatch& batch) {
  model.zero_grad();
  model.set_dropout_key({9, 4, 16});
  const Tensor sum = model.loss(batch).sum;
  sum.backward();
  std::vector<Tensor> all{sum.detach()};
  for (const auto& p : model.named_parameters()) {
    CAPTURE(p.key());
    REQUIRE(p.value().grad().defined());
    all.push_back(p.value().grad().clone());
  }
  return all;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = a[i].equal(b[i]);
  return same;
}

std::shared_ptr<LanguageModel> ready(const recipe::Model& c) {
  auto model = make_model(c);
  initialise(*model, 5);
  const torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(torch::randn(p.sizes()), 0.1);
  return model;
}

}  // namespace

TEST_CASE("recompute: no kind and no mix of kinds changes a bit") {
  for (const bool half : {false, true})
    for (const double dropout : {0.0, 0.2})
      for (auto config : {sized("llama"), sized("gpt2"), sized("llama", true)}) {
        CAPTURE(config.family);
        CAPTURE(config.moe.experts);
        CAPTURE(dropout);
        CAPTURE(half);
        config.dropout = dropout;
        const auto model = ready(config);
        if (half) model->to(torch::kBFloat16);
        const TokenBatch batch = batch_of(config);
        const auto expected = outcome(*model, batch);
        for (const Recompute kind : kinds) {
          model->set_recompute(std::vector<Recompute>(4, kind));
          CHECK(same_bits(expected, outcome(*model, batch)));
        }
        model->set_recompute(
            {Recompute::full, Recompute::selective, Recompute::none, Recompute::full});
        CHECK(same_bits(expected, outcome(*model, batch)));
      }
}

TEST_CASE("recompute: a graph that is kept can be gone through twice") {
  const auto config = sized("gpt2");
  const auto model = ready(config);
  const TokenBatch batch = batch_of(config);
  const auto once = [&] {
    const Tensor in = torch::ones({96, 64}).requires_grad_(true);
    const Tensor out = model->run_stage({0, 4, false, false}, in, batch).activation;
    Tensor first = torch::autograd::grad({out}, {in}, {torch::ones_like(out)})[0];
    return first;
  };
  const Tensor expected = once();
  model->set_recompute(std::vector<Recompute>(4, Recompute::selective));
  CHECK(once().equal(expected));
}

TEST_CASE("recompute: the bytes that are kept are those of the formulas, with dropout too") {
  for (const double dropout : {0.0, 0.2})
    for (auto config : {sized("llama"), sized("gpt2")}) {
      CAPTURE(config.family);
      CAPTURE(dropout);
      config.dropout = dropout;
      const auto model = ready(config);
      recipe::Recipe recipe;
      recipe.model = config;
      recipe.data.sequence = 32;
      recipe.batch = {3, 3};
      double before = 1e18;
      for (const char* kind : {"none", "selective", "full"}) {
        CAPTURE(std::string(kind));
        recipe.recompute = kind;
        const auto layout = plan::make_layout(recipe);
        model->set_recompute(plan::recompute_of(recipe, layout));
        const double row = 96 * 64 * 4;
        double said = plan::memory_of(recipe, layout, 0).activations;
        said -= 2 * row + (dropout > 0 ? row : 0);  // the ends, which are not run
        if (recipe.recompute == "full") said = 4 * 2 * row;
        const double bytes = kept(*model, batch_of(config));
        CHECK(bytes == doctest::Approx(said).epsilon(0.1));
        CHECK(bytes < 0.9 * before);
        before = bytes;
      }
    }
}
