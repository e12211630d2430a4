#include "nn/generate.h"

#include <doctest/doctest.h>

#include <map>

#include "base/error.h"

using namespace tutti::nn;
using Ids = std::vector<std::int64_t>;

namespace {

std::shared_ptr<LanguageModel> model_of(const std::string& family) {
  tutti::recipe::Model c;
  c.family = family;
  c.vocab = 29, c.layers = 2, c.embed = 16, c.heads = 4, c.init_std = 0.5;
  if (family == "llama") c.kv_heads = 2;
  auto model = make_model(resolve(c, 24));
  initialise(*model, 3);
  return model;
}

Ids by_full_forward(LanguageModel& model, Ids text, int count) {
  torch::NoGradGuard no_grad;
  Ids made;
  for (int i = 0; i < count; ++i) {
    const auto logits = model.logits(torch::tensor(text, torch::kLong).unsqueeze(0));
    made.push_back(logits[0][-1].argmax().item<std::int64_t>());
    text.push_back(made.back());
  }
  return made;
}

}  // namespace

TEST_CASE("generate: greedy equals the argmax of full forward passes") {
  for (const char* family : {"llama", "gpt2"}) {
    const auto model = model_of(family);
    const Ids prompt{1, 2, 3};
    CHECK(generate(*model, prompt, 20, {.temperature = 0}) == by_full_forward(*model, prompt, 20));
  }
}

TEST_CASE("generate: a seed gives one text, another seed another") {
  const auto model = model_of("llama");
  const auto text = [&](std::uint64_t seed) {
    return generate(*model, {4}, 40,
                    {.temperature = 1.5, .top_k = 20, .top_p = 0.95, .seed = seed});
  };
  CHECK(text(1).size() == 40);  // also past the context of 24
  CHECK(text(1) == text(1));
  CHECK(text(1) != text(2));
}

TEST_CASE("generate: streams each token and stops when told") {
  const auto model = model_of("gpt2");
  Ids streamed;
  const auto made = generate(*model, {4, 5}, 10, {}, [&](std::int64_t token) {
    streamed.push_back(token);
    return streamed.size() < 3;
  });
  CHECK(made.size() == 3);
  CHECK(made == streamed);
  CHECK(model->is_training());
}

TEST_CASE("sample: top_k and top_p leave out the unlikely") {
  const auto logits = torch::tensor({0.0f, 3.0f, 2.0f, -1.0f, 2.5f});
  std::map<std::int64_t, int> plain, few, nucleus;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    ++plain[sample(logits, {}, i)];
    ++few[sample(logits, {.top_k = 2}, i)];
    ++nucleus[sample(logits, {.top_p = 0.8}, i)];
  }
  CHECK(plain.size() == 5);
  const auto expected = torch::softmax(logits, 0);
  for (const auto& [token, count] : plain)
    CHECK(std::abs(count / 4000.0 - expected[token].item<double>()) < 0.03);
  CHECK(few.size() == 2);
  CHECK(few.count(1) + few.count(4) == 2);
  CHECK(nucleus.size() == 3);  // 0.49 + 0.30 < 0.8
  CHECK(nucleus.count(2) == 1);
}

// A model may have more ids than its tokenizer.
TEST_CASE("generate: only ids that have text") {
  const auto model = model_of("llama");
  for (const double temperature : {0.0, 1.0, 100.0}) {
    bool beyond = false;
    for (const std::int64_t id : generate(*model, {4}, 60, {.temperature = temperature, .ids = 7}))
      beyond |= id >= 7;
    CHECK(!beyond);
  }
}

TEST_CASE("generate: reports all bad settings at once") {
  const auto model = model_of("llama");
  CHECK_THROWS_AS(generate(*model, {}, 3, {}), tutti::ConfigError);
  try {
    check({.temperature = -1, .top_k = -2, .top_p = 0});
    FAIL("accepted");
  } catch (const tutti::ConfigError& error) {
    CHECK(error.violations().size() == 3);
  }
}
