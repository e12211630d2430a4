#include "nn/model.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/rng.h"
#include "nn/decoder.h"
#include "nn/dropout.h"
#include "nn/ops.h"

using namespace tutti::nn;
using torch::Tensor;

namespace {

tutti::recipe::Model small(const std::string& family) {
  tutti::recipe::Model c;
  c.family = family;
  c.vocab = 37, c.layers = 2, c.embed = 24, c.heads = 4;
  if (family != "gpt2") c.kv_heads = 2;
  return resolve(c, 20);
}

// Every branch of the Llama family, and both of GPT-2's heads.
std::vector<tutti::recipe::Model> variants() {
  std::vector<tutti::recipe::Model> all{small("llama"), small("llama"), small("llama"),
                                        small("gpt2"), small("gpt2")};
  all[1].tied = all[1].qkv_bias = true;  // Qwen 2
  all[2].qk_norm = true;                 // Qwen 3, with a head of its own size and Llama 3's angles
  all[2].head_dim = 10;
  all[2].rope_scaling.kind = "llama3";
  all[2].rope_scaling.original_context = 8;
  all[4].tied = true;
  return all;
}

TokenBatch batch_of(const tutti::recipe::Model& c, std::int64_t samples, std::int64_t sequence) {
  torch::manual_seed(3);
  TokenBatch batch;
  batch.inputs = torch::randint(c.vocab, {samples, sequence}, torch::kLong);
  batch.targets = torch::randint(c.vocab, {samples, sequence}, torch::kLong);
  batch.targets[0][1] = -1;
  return batch;
}

std::shared_ptr<LanguageModel> ready(const tutti::recipe::Model& c) {
  auto model = make_model(c);
  initialise(*model, 5);
  torch::NoGradGuard no_grad;  // away from ones and zeros, so that every parameter matters
  torch::manual_seed(11);
  for (auto& p : model->parameters()) p.add_(torch::randn(p.sizes()), 0.1);
  return model;
}

struct Outcome {
  Tensor loss;
  std::vector<Tensor> gradients;
};

Outcome run(LanguageModel& model, const TokenBatch& batch) {
  model.zero_grad();
  const Tensor sum = model.loss(batch).sum;
  sum.backward();
  Outcome outcome{sum.detach(), {}};
  for (const auto& p : model.named_parameters()) {
    CAPTURE(p.key());
    REQUIRE(p.value().grad().defined());
    outcome.gradients.push_back(p.value().grad().clone());
  }
  return outcome;
}

double distance(const Tensor& a, const Tensor& b) {
  const auto wide = b.to(torch::kDouble);
  return (a.to(torch::kDouble) - wide).abs().max().item<double>() /
         std::max(1.0, wide.abs().max().item<double>());
}

bool same_bits(const Outcome& a, const Outcome& b) {
  bool same = a.loss.equal(b.loss);
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    same = same && a.gradients[i].equal(b.gradients[i]);
  return same;
}

}  // namespace

TEST_CASE("model: loss and gradients equal those of plain torch ops in fp64") {
  for (const auto& config : variants()) {
    CAPTURE(config.family);
    CAPTURE(config.tied);
    const auto model = ready(config);
    for (bool documents : {false, true}) {
      auto batch = batch_of(config, 2, 19);
      if (documents)
        batch.documents = (torch::arange(19) / 7).to(torch::kInt).expand({2, 19}).contiguous();
      const Outcome ours = run(*model, batch);
      PlainOps plain;
      model->to(torch::kDouble);
      const Outcome theirs = run(*model, batch);
      model->to(torch::kFloat);
      CHECK(distance(ours.loss, theirs.loss) < 1e-6);
      for (std::size_t i = 0; i < ours.gradients.size(); ++i) {
        CAPTURE(model->named_parameters()[i].key());
        CHECK(distance(ours.gradients[i], theirs.gradients[i]) < 1e-5);
      }
    }
  }
}

TEST_CASE("model: recomputation changes no bit, with dropout and a tied head too") {
  for (auto config : variants()) {
    for (double dropout : {0.0, 0.2}) {
      config.dropout = dropout;
      const auto model = ready(config);
      model->set_dropout_key({9, 4, 16});
      const auto batch = batch_of(config, 2, 13);
      const Outcome once = run(*model, batch), again = run(*model, batch);
      CHECK(same_bits(once, again));
      model->set_recompute(true);
      CHECK(same_bits(once, run(*model, batch)));
    }
  }
}

TEST_CASE("model: dropout belongs to the sample, not to its micro-batch") {
  const Tensor whole = keep_mask({6, 3, 5}, 0.3, "a", {1, 2, 0}, torch::kCPU);
  const Tensor last = keep_mask({2, 3, 5}, 0.3, "a", {1, 2, 4}, torch::kCPU);
  CHECK(whole.narrow(0, 4, 2).equal(last));
  CHECK_FALSE(whole.equal(keep_mask({6, 3, 5}, 0.3, "a", {1, 3, 0}, torch::kCPU)));
  CHECK_FALSE(whole.equal(keep_mask({6, 3, 5}, 0.3, "b", {1, 2, 0}, torch::kCPU)));
  const Tensor many = keep_mask({1, 100000}, 0.3, "c", {1, 1, 0}, torch::kCPU);
  CHECK(std::abs(many.mean().item<double>() - 1) < 0.01);
  CHECK(std::abs((many == 0).to(torch::kDouble).mean().item<double>() - 0.3) < 0.01);
}

TEST_CASE("model: bf16 parameters stay near fp32") {
  for (const auto& config : variants()) {
    const auto model = ready(config);
    const auto batch = batch_of(config, 2, 19);
    const double wide = model->loss(batch).sum.item<double>();
    model->to(torch::kBFloat16);
    const Outcome half = run(*model, batch);
    CHECK(bool(half.loss.scalar_type() == torch::kFloat));
    CHECK(std::abs(half.loss.item<double>() - wide) < 0.02 * wide);
  }
}

TEST_CASE("model: a later token or another document changes nothing before it") {
  const auto config = small("llama");
  const auto model = ready(config);
  torch::NoGradGuard no_grad;
  const Tensor ids = batch_of(config, 1, 12).inputs;
  Tensor other = ids.clone();
  other[0][8] = (ids[0][8] + 1) % config.vocab;
  const Tensor a = model->logits(ids), b = model->logits(other);
  CHECK(a.narrow(1, 0, 8).equal(b.narrow(1, 0, 8)));
  CHECK_FALSE(a.narrow(1, 8, 4).equal(b.narrow(1, 8, 4)));

  const Tensor documents = (torch::arange(12) / 9).to(torch::kInt).unsqueeze(0);
  const Tensor c = model->logits(ids, documents), d = model->logits(other, documents);
  CHECK(c.narrow(1, 9, 3).equal(d.narrow(1, 9, 3)));
}

TEST_CASE("model: initialisation is by name") {
  const auto config = small("llama");
  const auto model = make_model(config);
  initialise(*model, 7);
  const auto parameters = model->named_parameters();
  const Tensor weight = parameters["model.layers.1.mlp.up_proj.weight"].flatten();
  const tutti::RandomStream stream(7, "model.layers.1.mlp.up_proj.weight");
  for (std::int64_t i : {0, 1, 2, 777})
    CHECK(weight[i].item<float>() ==
          static_cast<float>(0.02 * stream.normal(static_cast<std::uint64_t>(i))));
  CHECK(parameters["model.norm.weight"].equal(torch::ones({24})));
}

TEST_CASE("model: names, axes and flops") {
  const auto config = variants()[1];
  const auto model = make_model(config);
  const auto axes = model->axes();
  CHECK(axes.at("model.layers.0.self_attn.k_proj.bias") == std::vector<std::string>{"kv_heads"});
  CHECK(axes.at("model.embed_tokens.weight") == std::vector<std::string>{"vocab", "embed"});
  CHECK(axes.count("lm_head.weight") == 0);
  CHECK(make_model(small("gpt2"))->axes().at("transformer.h.1.attn.c_attn.weight") ==
        std::vector<std::string>{"embed", "qkv"});
  tutti::recipe::Model peer;  // /bench/peers' default
  peer.vocab = 256, peer.kv_heads = 4, peer.mlp = 688;
  CHECK(make_model(resolve(peer, 128))->flops_per_token(128) == 19365888);
}

TEST_CASE("model: resolve fills in what follows and reports every contradiction") {
  tutti::recipe::Model c;
  c.vocab = 256;
  const auto done = resolve(c, 128);
  CHECK(done.mlp == 688);
  CHECK(done.kv_heads == 8);
  CHECK(done.head_dim == 32);
  CHECK(done.context == 128);
  c.kv_heads = 3, c.context = 64;
  try {
    resolve(c, 128);
    FAIL("accepted");
  } catch (const tutti::ConfigError& error) {
    CHECK(error.violations().size() == 2);
  }
  c.family = "mamba";
  CHECK_THROWS_AS(resolve(c, 128), tutti::ConfigError);
}

TEST_CASE("model: refuses ids outside the vocabulary and too long inputs") {
  const auto model = ready(small("llama"));
  const Tensor bad = torch::full({1, 4}, 37, torch::kLong);
  CHECK_THROWS_WITH_AS(model->logits(bad),
                       "token id 37 is outside the model's vocabulary of 37; was the data made by "
                       "another tokenizer?",
                       tutti::ConfigError);
  CHECK_THROWS_AS(model->logits(torch::zeros({1, 21}, torch::kLong)), tutti::ConfigError);
}

// Wavelengths 2 pi 10000^(i/4) = 6.3, 63, 628, 6283 against a first context of 100: the first is
// kept (below 100 / 4), the last two are slowed (above 100 / 1), the second lies between.
TEST_CASE("model: Llama 3 slows only the long wavelengths") {
  tutti::recipe::Model c;
  c.head_dim = 8;
  const auto angles = [&] {
    const Rope table = rope_table(c, 2);
    return torch::atan2(table.sine[1], table.cosine[1]).to(torch::kDouble);
  };
  const Tensor plain = angles();
  CHECK(distance(plain, torch::tensor({1.0, 0.1, 0.01, 0.001})) < 1e-7);
  c.rope_scaling = {"linear", 4, 1, 4, 100};
  CHECK(distance(angles(), plain / 4) < 1e-7);
  c.rope_scaling = {"llama3", 8, 1, 4, 100};
  const double smooth = (100 / 62.83185307 - 1) / 3;
  const double between = ((1 - smooth) / 8 + smooth) * 0.1;
  CHECK(distance(angles(), torch::tensor({1.0, between, 0.00125, 0.000125})) < 1e-7);
}
