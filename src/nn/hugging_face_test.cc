#include "nn/hugging_face.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "nn/test_mixtures.h"

using namespace tutti::nn;
using tutti::ConfigError, tutti::DType, tutti::Json, tutti::TempFolder;

namespace {

std::vector<tutti::recipe::Model> families() {
  tutti::recipe::Model c;
  c.vocab = 31, c.layers = 2, c.embed = 16, c.heads = 4, c.kv_heads = 2;
  std::vector<tutti::recipe::Model> all(4, c);
  all[0].rope_scaling = {"llama3", 4, 1, 4, 16};
  all[1].tied = all[1].qkv_bias = true;
  all[2].qk_norm = true, all[2].head_dim = 8, all[2].rope_theta = 5000;
  all[3].family = "gpt2", all[3].tied = true, all[3].kv_heads = 4;
  for (auto& one : all) one = resolve(one, 24);
  for (const auto& [name, mixture] : testing::mixtures()) all.push_back(mixture);
  return all;
}

std::shared_ptr<LanguageModel> random_model(const tutti::recipe::Model& c, std::uint64_t seed) {
  auto model = make_model(c);
  initialise(*model, seed);
  torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(torch::randn(p.sizes()), 0.1);
  for (auto& b : model->buffers()) b.copy_(torch::randn(b.sizes()));
  return model;
}

bool same_weights(const LanguageModel& a, const LanguageModel& b) {
  const auto other = b.named_parameters();
  for (const auto& p : a.named_parameters())
    if (!p.value().equal(other[p.key()])) return false;
  const auto buffers = b.named_buffers();
  for (const auto& p : a.named_buffers())
    if (!p.value().equal(buffers[p.key()])) return false;
  return true;
}

// What a folder can say of them.
void check_same(const tutti::recipe::Moe& a, const tutti::recipe::Moe& b) {
  CHECK(a.experts == b.experts);
  CHECK(a.experts_per_token == b.experts_per_token);
  CHECK(a.expert_mlp == b.expert_mlp);
  CHECK(a.shared_experts == b.shared_experts);
  CHECK(a.shared_gate == b.shared_gate);
  CHECK(a.dense_layers == b.dense_layers);
  CHECK(a.router == b.router);
  CHECK(a.normalise == b.normalise);
  CHECK(a.router_scale == b.router_scale);
  CHECK(a.groups == b.groups);
  CHECK(a.groups_per_token == b.groups_per_token);
}

std::size_t mistakes(const std::function<void()>& run) {
  try {
    run();
  } catch (const ConfigError& error) {
    return error.violations().size();
  }
  return 0;
}

}  // namespace

TEST_CASE("hugging face: a saved model comes back, in one file or several") {
  for (const auto& config : families()) {
    CAPTURE(config.family);
    CAPTURE(config.qk_norm);
    const auto model = random_model(config, 1);
    for (std::uint64_t limit : {std::uint64_t{1} << 30, std::uint64_t{3000}}) {
      const TempFolder folder;
      save_pretrained(*model, folder.path(), {DType::f32, limit});
      CHECK(tutti::fs::exists(folder.path() / "model.safetensors.index.json") == (limit == 3000));
      const auto read = read_config(folder.path());
      CHECK(read.rope_theta == config.rope_theta);
      CHECK(bool(read.rope_scaling == config.rope_scaling));
      CHECK(read.head_dim == config.head_dim);
      CHECK(read.tied == config.tied);
      CHECK(read.qk_norm_whole == config.qk_norm_whole);
      check_same(read.moe, config.moe);
      auto again = make_model(read);
      load_weights(*again, folder.path());
      CHECK(same_weights(*model, *again));
    }
  }
}

TEST_CASE("hugging face: bf16 on disk is rounded fp32") {
  const auto model = random_model(families()[0], 2);
  const TempFolder folder;
  save_pretrained(*model, folder.path(), {DType::bf16});
  auto again = make_model(model->config());
  load_weights(*again, folder.path());
  for (const auto& p : again->named_parameters())
    CHECK(
        p.value().equal(model->named_parameters()[p.key()].to(torch::kBFloat16).to(torch::kFloat)));
}

TEST_CASE("hugging face: missing, unexpected and misshaped weights are told together") {
  auto config = families()[0];
  const auto model = random_model(config, 3);
  const TempFolder folder;
  save_pretrained(*model, folder.path());
  config.layers = 1;       // layer 1's nine weights are unexpected
  config.mlp += 8;         // gate, up and down have another shape
  config.qkv_bias = true;  // three are missing
  auto other = make_model(config);
  initialise(*other, 1);
  const auto before = other->parameters()[0].clone();
  CHECK(mistakes([&] { load_weights(*other, folder.path()); }) == 9 + 3 + 3);
  CHECK(before.equal(other->parameters()[0]));
}

TEST_CASE("hugging face: refuses what it cannot run and lists what it can") {
  const Json good = to_hugging_face(families()[0], DType::f32);
  CHECK(mistakes([&] { from_hugging_face(good, "c"); }) == 0);
  Json bad = good;
  bad["architectures"] = {"MambaForCausalLM"};
  CHECK_THROWS_WITH_AS(from_hugging_face(bad, "c"), doctest::Contains("Qwen3ForCausalLM"),
                       ConfigError);
  bad = good;
  bad["mlp_bias"] = true;
  bad["hidden_act"] = "gelu";
  bad["hidden_size"] = "big";
  bad.erase("vocab_size");
  bad["rope_parameters"] = {{"rope_type", "yarn"}};
  CHECK(mistakes([&] { from_hugging_face(bad, "c"); }) >= 5);
  bad = good;
  bad["architectures"] = {"MistralForCausalLM"};
  bad["sliding_window"] = 8;
  CHECK(mistakes([&] { from_hugging_face(bad, "c"); }) == 1);
  bad["sliding_window"] = nullptr;
  CHECK(mistakes([&] { from_hugging_face(bad, "c"); }) == 0);
  for (const char* junk : {"[]", "3", "{}", "{\"architectures\": []}"})
    CHECK_THROWS_AS(from_hugging_face(tutti::parse_json(junk, "c"), "c"), ConfigError);
}

TEST_CASE("hugging face: an empty folder and damaged files have clear errors") {
  const TempFolder folder;
  CHECK_THROWS_AS(read_config(folder.path()), ConfigError);
  const auto model = random_model(families()[0], 3);
  CHECK_THROWS_AS(load_weights(*model, folder.path()), ConfigError);
  save_pretrained(*model, folder.path());
  const auto path = folder.path() / "model.safetensors";
  const std::string whole = tutti::read_file(path);
  for (std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{40}, whole.size() - 1}) {
    tutti::write_file(path, whole.substr(0, size));
    CHECK_THROWS_AS(load_weights(*model, folder.path()), tutti::WorldError);
  }
  for (std::size_t at : {8, 60, 100}) {  // in the header
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x40);
    tutti::write_file(path, flipped);
    CHECK_THROWS(load_weights(*model, folder.path()));
  }
}

TEST_CASE("hugging face: each mixture of experts has its architecture, others have none") {
  for (auto [name, config] : testing::mixtures()) {
    CAPTURE(name);
    const Json json = to_hugging_face(config, DType::f32);
    CHECK(json["architectures"][0] == name + "ForCausalLM");
    CHECK(mistakes([&] { from_hugging_face(json, "c"); }) == 0);
    config.qkv_bias = !config.qkv_bias;
    CHECK(mistakes([&] { to_hugging_face(config, DType::f32); }) == 1);
  }
}

TEST_CASE("hugging face: what a mixture cannot be here is told") {
  const auto mistakes_with = [](std::size_t which, const Json& change) {
    Json json = to_hugging_face(testing::mixtures()[which].second, DType::f32);
    json.update(change);
    return mistakes([&] { from_hugging_face(json, "c"); });
  };
  CHECK(mistakes_with(0, {{"num_experts_per_tok", 7}}) == 1);
  CHECK(mistakes_with(0, {{"num_local_experts", nullptr}}) >= 1);
  CHECK(mistakes_with(0, {{"router_jitter_noise", 0.1}}) == 1);
  CHECK(mistakes_with(1, {{"clip_qkv", 8.0}}) == 1);
  CHECK(mistakes_with(2, {{"shared_expert_intermediate_size", 15}}) == 1);
  CHECK(mistakes_with(2, {{"decoder_sparse_step", 2}}) == 1);
  CHECK(mistakes_with(3, {{"mlp_only_layers", {1}}}) == 1);
  CHECK(mistakes_with(3, {{"mlp_only_layers", {0, 1, 2}}}) == 1);
  CHECK(mistakes_with(3, {{"mlp_only_layers", {0, 1}}}) == 0);
  CHECK(mistakes_with(3, {{"num_experts", nullptr}, {"num_local_experts", 6}}) == 0);
  CHECK(mistakes_with(4, {{"first_k_dense_replace", 3}}) == 1);
  CHECK(mistakes_with(4, {{"n_group", 4}}) == 1);
  CHECK(mistakes_with(4, {{"topk_group", 4}}) == 1);
}
