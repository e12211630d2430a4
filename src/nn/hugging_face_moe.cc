// config.json of the mixtures of experts that transformers has and Decoder can be. Each row of the
// table is one architecture: what it fixes, and what its fields are called.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "nn/hugging_face_fields.h"

namespace tutti::nn {
namespace {

struct Kind {
  const char* architecture;
  const char* type;     // model_type
  const char* experts;  // the field with their number
  const char* width;    // with the width of one
  // What it has; a model that differs is another architecture.
  bool qkv_bias, qk_norm, qk_norm_whole, sigmoid, shared, shared_gate, may_have_dense;
};

constexpr Kind kinds[] = {
    {"MixtralForCausalLM", "mixtral", "num_local_experts", "intermediate_size", false, false, false,
     false, false, false, false},
    {"OlmoeForCausalLM", "olmoe", "num_experts", "intermediate_size", false, true, true, false,
     false, false, false},
    {"Qwen2MoeForCausalLM", "qwen2_moe", "num_experts", "moe_intermediate_size", true, false, false,
     false, true, true, true},
    {"Qwen3MoeForCausalLM", "qwen3_moe", "num_experts", "moe_intermediate_size", false, true, false,
     false, false, false, true},
    {"Dots1ForCausalLM", "dots1", "n_routed_experts", "moe_intermediate_size", false, true, false,
     true, true, false, true},
};

bool is(const Kind& kind, const char* type) { return std::string_view(kind.type) == type; }

const Kind* find_kind(const std::string& architecture) {
  const auto* at = std::find_if(std::begin(kinds), std::end(kinds),
                                [&](const Kind& k) { return architecture == k.architecture; });
  return at == std::end(kinds) ? nullptr : at;
}

bool fits(const Kind& k, const recipe::Model& m) {
  const recipe::Moe& moe = m.moe;
  const bool same = m.qkv_bias == k.qkv_bias && m.qk_norm == k.qk_norm &&
                    m.qk_norm_whole == k.qk_norm_whole && (moe.router == "sigmoid") == k.sigmoid &&
                    (moe.shared_experts > 0) == k.shared && moe.shared_gate == k.shared_gate &&
                    (moe.dense_layers == 0 || k.may_have_dense);
  if (!same) return false;
  if (is(k, "mixtral") && !moe.normalise) return false;
  if (is(k, "olmoe") && m.head_dim * m.heads != m.embed) return false;
  return k.sigmoid || (moe.groups == 1 && moe.router_scale == 1 && moe.balance_bias_rate == 0);
}

// Which layers are dense: the first ones only.
std::int64_t leading_dense(JsonFields& f, std::int64_t layers) {
  if (f.size("decoder_sparse_step", 1) != 1)
    f.wrong("decoder_sparse_step", f.json()["decoder_sparse_step"].dump(), "must be 1 here");
  if (!f.has("mlp_only_layers")) return 0;
  const Json& list = f.json()["mlp_only_layers"];
  std::int64_t count = 0;
  if (list.is_array())
    for (const auto& layer : list)
      if (layer.is_number_integer() && layer == count) ++count;
  if (!list.is_array() || static_cast<std::int64_t>(list.size()) != count || count >= layers)
    f.wrong("mlp_only_layers", list.dump(), "must be the first layers here, in order");
  return count;
}

void read_shared(JsonFields& f, const Kind& kind, recipe::Moe& moe) {
  moe.shared_gate = kind.shared_gate;
  if (is(kind, "dots1")) moe.shared_experts = f.size("n_shared_experts");
  if (!is(kind, "qwen2_moe")) return;
  const std::int64_t width = f.size("shared_expert_intermediate_size");
  if (width % moe.expert_mlp != 0)
    f.wrong("shared_expert_intermediate_size", str(width),
            str("must be a multiple of moe_intermediate_size = ", moe.expert_mlp, " here"));
  moe.shared_experts = std::max<std::int64_t>(1, width / moe.expert_mlp);
}

void read_groups(JsonFields& f, recipe::Moe& moe) {
  moe.router_scale = f.number("routed_scaling_factor", 1);
  moe.groups = f.size("n_group", 1);
  moe.groups_per_token = f.size("topk_group", 1);
  const std::int64_t group = moe.experts / moe.groups;
  if (moe.experts % moe.groups != 0 || (moe.groups > 1 && group < 2))
    f.wrong("n_group", str(moe.groups),
            str("must cut n_routed_experts = ", moe.experts, " into groups of two or more"));
  if (moe.groups_per_token > moe.groups || moe.experts_per_token > group * moe.groups_per_token)
    f.wrong("topk_group", str(moe.groups_per_token),
            str("must be at most n_group and leave num_experts_per_tok = ", moe.experts_per_token,
                " experts to choose from"));
}

}  // namespace

bool has_experts(const std::string& architecture) { return find_kind(architecture) != nullptr; }

void read_experts(JsonFields& f, const std::string& architecture, recipe::Model& m) {
  const Kind& kind = *find_kind(architecture);
  recipe::Moe& moe = m.moe;
  m.qkv_bias = kind.qkv_bias;
  m.qk_norm = kind.qk_norm;
  m.qk_norm_whole = kind.qk_norm_whole;
  if (is(kind, "qwen2_moe") && !f.flag("qkv_bias", true))
    f.wrong("qkv_bias", "false", "is not supported here");
  // transformers 5 has one name for all in what it writes, and reads both.
  const bool renamed = !f.has(kind.experts) && f.has("num_local_experts");
  moe.experts = f.size(renamed ? "num_local_experts" : kind.experts);
  moe.experts_per_token = f.size("num_experts_per_tok", is(kind, "mixtral") ? 2 : 0);
  moe.expert_mlp = f.size(kind.width);
  moe.router = kind.sigmoid ? "sigmoid" : "softmax";
  moe.normalise = is(kind, "mixtral") || f.flag("norm_topk_prob", false);
  read_shared(f, kind, moe);
  if (is(kind, "dots1")) {
    moe.dense_layers = f.amount("first_k_dense_replace");
    if (moe.dense_layers >= m.layers)
      f.wrong("first_k_dense_replace", str(moe.dense_layers), "must be below num_hidden_layers");
    read_groups(f, moe);
  } else if (kind.may_have_dense) {
    moe.dense_layers = leading_dense(f, m.layers);
  }
  if (moe.experts_per_token > moe.experts)
    f.wrong("num_experts_per_tok", str(moe.experts_per_token),
            str("must be at most ", kind.experts, " = ", moe.experts));
  if (is(kind, "olmoe") && f.has("clip_qkv"))
    f.wrong("clip_qkv", f.json()["clip_qkv"].dump(), "is not supported here");
  if (f.number("router_jitter_noise", 0) != 0)
    f.wrong("router_jitter_noise", f.json()["router_jitter_noise"].dump(), "must be 0 here");
}

std::string architecture_with_experts(const recipe::Model& m) {
  for (const Kind& kind : kinds)
    if (fits(kind, m)) return kind.architecture;
  throw ConfigError(
      {{"model.moe", "", m.moe.router + " router",
        "cannot be exported: no architecture of Hugging Face that we know is this mixture",
        "Mixtral: normalised softmax, no shared experts; Olmoe: qk_norm_whole; Qwen2Moe: qkv_bias, "
        "shared experts with a gate; Qwen3Moe: qk_norm; Dots1: sigmoid, qk_norm, shared experts"}});
}

Json experts_json(const recipe::Model& m) {
  const Kind& kind = *find_kind(architecture_with_experts(m));
  const recipe::Moe& moe = m.moe;
  Json json{{"model_type", kind.type},
            {"num_experts_per_tok", moe.experts_per_token},
            {"norm_topk_prob", moe.normalise},
            {"output_router_logits", false}};
  json[kind.experts] = moe.experts;
  json[kind.width] = moe.expert_mlp;
  if (is(kind, "dots1")) {
    json["n_shared_experts"] = moe.shared_experts;
    json["first_k_dense_replace"] = moe.dense_layers;
    json["n_group"] = moe.groups;
    json["topk_group"] = moe.groups_per_token;
    json["routed_scaling_factor"] = moe.router_scale;
  } else if (kind.may_have_dense) {
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
    for (std::int64_t i = 0; i < moe.dense_layers; ++i) json["mlp_only_layers"].push_back(i);
  }
  if (is(kind, "qwen2_moe"))
    json["shared_expert_intermediate_size"] = moe.shared_experts * moe.expert_mlp;
  json["sliding_window"] = nullptr;
  return json;
}

}  // namespace tutti::nn
