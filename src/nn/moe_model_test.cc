// Models whose layers are mixtures of experts, one of each architecture.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "nn/model.h"
#include "nn/test_mixtures.h"
#include "nn/test_twins.h"

using namespace tutti::nn;
using torch::Tensor;
using tutti::nn::testing::distance, tutti::nn::testing::mixtures;

namespace {

// Many products too small to share: threads would wait for each other, longest on a busy machine.
struct OneThread {
  OneThread() : outer(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(outer); }
  int outer;
};

// With the routers' losses; `tight`: experts overflow.
std::vector<std::pair<std::string, tutti::recipe::Model>> trained(bool tight) {
  auto all = mixtures();
  for (auto& [name, m] : all) {
    m.moe.aux_loss = 0.1, m.moe.z_loss = 0.05;
    if (tight) m.moe.capacity_factor = 0.8;
  }
  return all;
}

std::shared_ptr<LanguageModel> ready(const tutti::recipe::Model& c) {
  auto model = make_model(c);
  initialise(*model, 5);
  torch::NoGradGuard no_grad;
  torch::manual_seed(11);
  for (auto& p : model->parameters()) p.add_(torch::randn(p.sizes()), 0.1);
  for (auto& b : model->named_buffers())
    if (b.key().ends_with("router.bias")) b.value().copy_(torch::randn(b.value().sizes()) * 0.1);
  return model;
}

TokenBatch batch_of(std::int64_t samples, std::int64_t sequence) {
  torch::manual_seed(3);
  TokenBatch batch{torch::randint(31, {samples, sequence}, torch::kLong),
                   torch::randint(31, {samples, sequence}, torch::kLong),
                   {}};
  batch.targets[0].narrow(0, 1, 4).fill_(-1);
  return batch;
}

struct Outcome {
  Loss loss;
  Tensor counts;
  std::vector<Tensor> gradients;
};

Outcome run(LanguageModel& model, const std::function<Loss()>& loss) {
  model.zero_grad();
  model.take_routed_counts();
  Outcome outcome{loss(), {}, {}};
  outcome.loss.sum.backward();
  outcome.counts = model.take_routed_counts();
  for (const auto& p : model.named_parameters()) {
    CAPTURE(p.key());
    REQUIRE(p.value().grad().defined());
    outcome.gradients.push_back(p.value().grad().clone());
  }
  return outcome;
}

Outcome run(LanguageModel& model, const TokenBatch& batch) {
  return run(model, [&] { return model.loss(batch); });
}

bool same_bits(const Outcome& a, const Outcome& b) {
  bool same = a.loss.sum.equal(b.loss.sum) && a.loss.routers.equal(b.loss.routers) &&
              a.loss.tokens == b.loss.tokens && a.counts.equal(b.counts);
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    same = same && a.gradients[i].equal(b.gradients[i]);
  return same;
}

}  // namespace

TEST_CASE_FIXTURE(OneThread,
                  "mixtures: loss, counts and gradients equal those of plain torch ops in fp64") {
  for (const bool tight : {false, true})
    for (const auto& [name, config] : trained(tight)) {
      CAPTURE(name);
      CAPTURE(tight);
      const auto model = ready(config);
      const TokenBatch batch = batch_of(2, 19);
      const Outcome ours = run(*model, batch);
      const PlainOps plain;
      model->to(torch::kDouble);
      const Outcome theirs = run(*model, batch);
      CHECK(distance(ours.loss.sum, theirs.loss.sum) < 1e-6);
      CHECK(distance(ours.loss.routers, theirs.loss.routers) < 1e-6);
      REQUIRE(ours.counts.equal(theirs.counts));
      for (std::size_t i = 0; i < ours.gradients.size(); ++i) {
        CAPTURE(model->named_parameters()[i].key());
        CHECK(distance(ours.gradients[i], theirs.gradients[i]) < 1e-5);
      }
    }
}

TEST_CASE_FIXTURE(OneThread, "mixtures: counts are every counted token's choices") {
  for (const auto& [name, config] : trained(true)) {
    CAPTURE(name);
    const auto model = ready(config);
    const Outcome once = run(*model, batch_of(2, 19));
    CHECK(once.loss.tokens == 34);
    const Tensor of_layers = once.counts.sum(1);
    CHECK(
        of_layers.equal(torch::full({config.layers - config.moe.dense_layers}, 68, torch::kLong)));
    model->loss(batch_of(2, 19));
    model->loss(batch_of(2, 19));
    CHECK(model->take_routed_counts().equal(2 * once.counts));
    CHECK(model->take_routed_counts().sum().item<std::int64_t>() == 0);
  }
}

TEST_CASE_FIXTURE(OneThread, "mixtures: recomputation changes no bit, and counts nothing twice") {
  for (auto [name, config] : trained(true))
    for (const double dropout : {0.0, 0.2}) {
      CAPTURE(name);
      config.dropout = dropout;
      const auto model = ready(config);
      model->set_dropout_key({9, 4, 16});
      const Outcome once = run(*model, batch_of(2, 13));
      model->set_recompute(true);
      CHECK(same_bits(once, run(*model, batch_of(2, 13))));
    }
}

TEST_CASE_FIXTURE(OneThread, "mixtures: a recomputed pass goes the way of the first") {
  const auto config = trained(true)[4].second;
  const Outcome once = run(*ready(config), batch_of(2, 13));
  const auto model = ready(config);
  model->set_recompute(true);
  const Outcome again = run(*model, [&] {
    const Loss loss = model->loss(batch_of(2, 13));
    for (auto& buffer : model->buffers()) buffer.uniform_();  // backward would choose otherwise
    return loss;
  });
  CHECK(same_bits(once, again));
}

TEST_CASE_FIXTURE(
    OneThread,
    "mixtures: a model run in stages is the model, its routers' losses where they arise") {
  for (const auto& [name, config] : trained(true)) {
    CAPTURE(name);
    const auto model = ready(config);
    const TokenBatch batch = batch_of(2, 13);
    const Outcome whole = run(*model, batch);
    const Outcome staged = run(*model, [&] {
      const StageOutput first = model->run_stage({0, 2, true, false}, {}, batch);
      CHECK(first.loss.tokens == 0);
      REQUIRE(first.loss.sum.defined());
      CHECK(first.loss.sum.equal(first.loss.routers));
      const StageOutput last = model->run_stage({2, 3, false, true}, first.activation, batch);
      return Loss{first.loss.sum + last.loss.sum, last.loss.tokens,
                  first.loss.routers + last.loss.routers};
    });
    CHECK(distance(staged.loss.sum, whole.loss.sum) < 1e-6);
    CHECK(distance(staged.loss.routers, whole.loss.routers) < 1e-6);
    CHECK(staged.counts.equal(whole.counts));
    CHECK(staged.loss.tokens == whole.loss.tokens);
    for (std::size_t i = 0; i < whole.gradients.size(); ++i)
      CHECK(staged.gradients[i].equal(whole.gradients[i]));
  }
}

TEST_CASE_FIXTURE(OneThread, "mixtures: a batch without a target has loss 0 and gradients of 0") {
  for (const auto& [name, config] : trained(false)) {
    CAPTURE(name);
    const auto model = ready(config);
    TokenBatch batch = batch_of(2, 9);
    batch.targets.fill_(-1);
    const Outcome outcome = run(*model, batch);
    CHECK(outcome.loss.sum.item<float>() == 0);
    CHECK(outcome.counts.sum().item<std::int64_t>() == 0);
    for (const Tensor& gradient : outcome.gradients) CHECK(gradient.abs().max().item<float>() == 0);
  }
}

TEST_CASE_FIXTURE(OneThread, "mixtures: the loss falls in training") {
  for (const auto& [name, config] : trained(false)) {
    CAPTURE(name);
    const auto model = make_model(config);
    initialise(*model, 5);
    const TokenBatch batch = batch_of(4, 16);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    float first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
      model->zero_grad();
      const Loss loss = model->loss(batch);
      (loss.sum / static_cast<double>(loss.tokens)).backward();
      optimizer.step();
      model->update_balance(model->take_routed_counts());
      last = ((loss.sum - loss.routers) / static_cast<double>(loss.tokens)).item<float>();
      if (step == 0) first = last;
    }
    CHECK(first == doctest::Approx(std::log(31)).epsilon(0.02));
    CHECK(last < 0.5 * first);
  }
}

TEST_CASE_FIXTURE(OneThread,
                  "mixtures: evaluation has no routers' losses, drops nothing and counts nothing") {
  for (const auto& [name, config] : trained(true)) {
    CAPTURE(name);
    const auto model = ready(config);
    const TokenBatch batch = batch_of(2, 13);
    const Loss in_training = model->loss(batch);
    model->take_routed_counts();
    model->eval();
    const Loss loss = model->loss(batch);
    CHECK_FALSE(loss.routers.defined());
    CHECK(model->take_routed_counts().sum().item<std::int64_t>() == 0);
    const Tensor logits = model->logits(batch.inputs).flatten(0, 1);
    const Tensor expected = torch::nn::functional::cross_entropy(
        logits, batch.targets.flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-1));
    CHECK(distance(loss.sum, expected) < 1e-5);
    CHECK(distance(loss.sum, in_training.sum - in_training.routers) > 1e-6);
  }
}

TEST_CASE_FIXTURE(OneThread, "mixtures: a cache of keys and values changes no logit") {
  for (const auto& [name, config] : mixtures()) {
    CAPTURE(name);
    const auto model = ready(config);
    model->eval();
    torch::NoGradGuard no_grad;
    const Tensor ids = batch_of(1, 12).inputs;
    KvCache cache;
    const Tensor a = model->logits(ids.narrow(1, 0, 7), {}, &cache),
                 b = model->logits(ids.narrow(1, 7, 5), {}, &cache);
    CHECK(distance(torch::cat({a, b}, 1), model->logits(ids)) < 1e-5);
  }
}

TEST_CASE_FIXTURE(OneThread,
                  "mixtures: the global aux loss looks at the load of the last global batch") {
  auto config = trained(false)[0].second;
  config.moe.z_loss = 0, config.moe.aux_scope = "global";
  const auto model = ready(config);
  const TokenBatch batch = batch_of(2, 13);
  const Outcome first = run(*model, batch);
  // Even load, at first: every token's loss is the weight, whatever it chose.
  CHECK(first.loss.routers.item<float>() ==
        doctest::Approx(0.1 * config.layers * static_cast<double>(first.loss.tokens)));
  model->update_balance(first.counts);
  const Outcome global = run(*model, batch);
  // The micro-batch is the global batch here, so both scopes agree.
  config.moe.aux_scope = "micro";
  const Outcome micro = run(*ready(config), batch);
  CHECK(distance(global.loss.routers, micro.loss.routers) < 1e-6);
  CHECK(distance(global.loss.routers, first.loss.routers) > 1e-3);
  model->update_balance(torch::zeros_like(first.counts));  // a step without a target: no change
  CHECK(same_bits(global, run(*model, batch)));
}

TEST_CASE_FIXTURE(OneThread,
                  "mixtures: update_balance moves the biases of crowded and of idle experts") {
  const auto config = mixtures()[4].second;
  const auto model = make_model(config);
  Tensor counts = torch::zeros({2, 6}, torch::kLong);
  counts[1][2] = 12;
  model->update_balance(counts);
  const auto bias = [&](int layer) {
    return model->named_buffers()["model.layers." + std::to_string(layer) + ".mlp.router.bias"];
  };
  CHECK(bias(1).equal(torch::zeros({6})));
  CHECK(bias(2).equal(torch::tensor({0.01f, 0.01f, -0.01f, 0.01f, 0.01f, 0.01f})));
}

TEST_CASE_FIXTURE(OneThread, "mixtures: names, axes and flops") {
  const auto config = mixtures()[2].second;
  const auto model = make_model(config);
  const auto axes = model->axes();
  const std::string mlp = "model.layers.2.mlp.";
  using Names = std::vector<std::string>;
  CHECK(axes.at(mlp + "experts.gate_proj.weight") == Names{"expert", "mlp", "embed"});
  CHECK(axes.at(mlp + "experts.down_proj.weight") == Names{"expert", "embed", "mlp"});
  CHECK(axes.at(mlp + "shared_expert.down_proj.weight") == Names{"embed", "mlp"});
  CHECK(axes.at(mlp + "router.weight") == Names{"router", "embed"});
  // 16 x (q 16, k 8, v 8, o 16; 2 + 2 experts of 3 x 10; router 6, gate 1) a layer; the head
  const double weights = 3 * 16 * (48 + 120 + 7) + 16 * 31;
  CHECK(model->flops_per_token(24) == 6 * weights + 12 * 3 * 16 * 24);
}
