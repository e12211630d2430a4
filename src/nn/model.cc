#include "nn/model.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/rng.h"
#include "nn/decoder.h"

namespace tutti::nn {
namespace {

struct AxisRule {
  std::string_view suffix;
  std::vector<std::string> axes;
};

const std::vector<AxisRule>& axis_rules() {
  static const std::vector<AxisRule> rules = {
      {"embed_tokens.weight", {"vocab", "embed"}},
      {"wte.weight", {"vocab", "embed"}},
      {"lm_head.weight", {"vocab", "embed"}},
      {"wpe.weight", {"position", "embed"}},
      {"q_proj.weight", {"heads", "embed"}},
      {"q_proj.bias", {"heads"}},
      {"k_proj.weight", {"kv_heads", "embed"}},
      {"k_proj.bias", {"kv_heads"}},
      {"v_proj.weight", {"kv_heads", "embed"}},
      {"v_proj.bias", {"kv_heads"}},
      {"o_proj.weight", {"embed", "heads"}},
      {"router.weight", {"router", "embed"}},
      {"shared_expert_gate.weight", {"router", "embed"}},
      {"experts.gate_proj.weight", {"expert", "mlp", "embed"}},
      {"experts.up_proj.weight", {"expert", "mlp", "embed"}},
      {"experts.down_proj.weight", {"expert", "embed", "mlp"}},
      {"gate_proj.weight", {"mlp", "embed"}},
      {"up_proj.weight", {"mlp", "embed"}},
      {"down_proj.weight", {"embed", "mlp"}},
      {"c_attn.weight", {"embed", "qkv"}},
      {"c_attn.bias", {"qkv"}},
      {"attn.c_proj.weight", {"heads", "embed"}},
      {"attn.c_proj.bias", {"embed"}},
      {"c_fc.weight", {"embed", "mlp"}},
      {"c_fc.bias", {"mlp"}},
      {"mlp.c_proj.weight", {"mlp", "embed"}},
      {"mlp.c_proj.bias", {"embed"}},
      {"norm.weight", {"norm"}},
      {"ln_1.weight", {"norm"}},
      {"ln_1.bias", {"norm"}},
      {"ln_2.weight", {"norm"}},
      {"ln_2.bias", {"norm"}},
      {"ln_f.weight", {"norm"}},
      {"ln_f.bias", {"norm"}}};
  return rules;
}

std::vector<std::string> axes_of(const std::string& name) {
  for (const auto& rule : axis_rules())
    if (name.ends_with(rule.suffix)) return rule.axes;
  TUTTI_ASSERT(false, "no axes for ", name);
  return {};
}

void fill_normal(const torch::Tensor& parameter, double std, const RandomStream& stream) {
  torch::Tensor values = torch::empty({parameter.numel()}, torch::kFloat);
  float* out = values.data_ptr<float>();
  const std::int64_t size = values.numel();
  at::parallel_for(0, (size + 1) / 2, 8192, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const auto drawn = stream.normal_pair(static_cast<std::uint64_t>(pair));
      out[2 * pair] = static_cast<float>(std * drawn[0]);
      if (2 * pair + 1 < size) out[2 * pair + 1] = static_cast<float>(std * drawn[1]);
    }
  });
  parameter.copy_(values.view(parameter.sizes()));
}

void require(std::vector<Violation>& found, bool holds, const char* field, std::int64_t value,
             const std::string& rule, const std::string& remedy = "") {
  if (!holds) found.push_back({str("model.", field), "", str(value), rule, remedy});
}

}  // namespace

std::map<std::string, std::vector<std::string>> LanguageModel::axes() const {
  std::map<std::string, std::vector<std::string>> result;
  for (const auto& parameter : named_parameters()) {
    result[parameter.key()] = axes_of(parameter.key());
    TUTTI_ASSERT(static_cast<std::int64_t>(result[parameter.key()].size()) ==
                 parameter.value().dim());
  }
  return result;
}

std::map<std::string, Grain> LanguageModel::grains() const {
  const std::int64_t dim = config_.head_dim;
  return {{"heads", {config_.heads / config_.kv_heads * dim, 1}},
          {"kv_heads", {dim, 1}},
          {"qkv", {dim, 3}}};
}

double LanguageModel::flops_per_token(std::int64_t sequence) const {
  const auto& c = config_;
  const double query = static_cast<double>(c.heads * c.head_dim);
  const double key = static_cast<double>(c.kv_heads * c.head_dim);
  const double embed = static_cast<double>(c.embed), layers = static_cast<double>(c.layers);
  const double mlp = static_cast<double>(c.family == "gpt2" ? 2 * c.mlp : 3 * c.mlp);
  const double mixed = c.moe.experts > 0 ? layers - static_cast<double>(c.moe.dense_layers) : 0;
  const double mixture =
      static_cast<double>(3 * c.moe.expert_mlp * (c.moe.experts_per_token + c.moe.shared_experts) +
                          c.moe.experts + (c.moe.shared_gate ? 1 : 0));
  const double weights = layers * (2 * query + 2 * key) + (layers - mixed) * mlp + mixed * mixture;
  return 6 * embed * (weights + static_cast<double>(c.vocab)) +
         12 * layers * query * static_cast<double>(sequence);
}

recipe::Model resolve(recipe::Model c, std::int64_t sequence) {
  std::vector<Violation> found;
  const bool gpt2 = c.family == "gpt2";
  if (!gpt2 && c.family != "llama")
    found.push_back({"model.family", "", c.family, "must be llama or gpt2", ""});
  for (const auto& [field, value] :
       {std::pair{"vocab", c.vocab}, {"layers", c.layers}, {"embed", c.embed}, {"heads", c.heads}})
    require(found, value > 0, field, value, "must be above 0");
  if (!found.empty()) throw ConfigError(found);

  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0) {
    require(found, c.embed % c.heads == 0, "heads", c.heads,
            str("must divide model.embed = ", c.embed), "or set model.head_dim");
    c.head_dim = c.embed / c.heads;
  }
  if (c.mlp == 0) c.mlp = gpt2 ? 4 * c.embed : (8 * c.embed + 23) / 24 * 8;
  if (c.moe.experts > 0 && c.moe.expert_mlp == 0) c.moe.expert_mlp = c.mlp;
  if (c.context == 0) c.context = sequence;
  require(found, c.context >= sequence, "context", c.context,
          str("must be at least data.sequence = ", sequence));
  require(found, c.heads % c.kv_heads == 0, "kv_heads", c.kv_heads,
          str("must divide model.heads = ", c.heads));
  if (gpt2) {
    require(found, c.kv_heads == c.heads, "kv_heads", c.kv_heads,
            "must equal model.heads for gpt2");
    require(found, c.heads * c.head_dim == c.embed, "head_dim", c.head_dim,
            "must be embed / heads for gpt2");
  } else {
    require(found, c.head_dim % 2 == 0, "head_dim", c.head_dim, "must be even, to be rotated");
  }
  require(found, c.moe.experts == 0 || !gpt2, "moe.experts", c.moe.experts, "must be 0 for gpt2");
  require(found, c.moe.experts == 0 || c.moe.experts_per_token <= c.moe.experts,
          "moe.experts_per_token", c.moe.experts_per_token,
          str("must not be above model.moe.experts = ", c.moe.experts));
  require(found, c.moe.experts == 0 || c.moe.dense_layers < c.layers, "moe.dense_layers",
          c.moe.dense_layers, str("must be below model.layers = ", c.layers));
  if (c.dropout < 0 || c.dropout >= 1)
    found.push_back({"model.dropout", "", str(c.dropout), "must be in [0, 1)", ""});
  if (!found.empty()) throw ConfigError(found);
  return c;
}

std::shared_ptr<LanguageModel> make_model(const recipe::Model& config) {
  return std::make_shared<Decoder>(config);
}

void initialise(LanguageModel& model, std::uint64_t seed) {
  torch::NoGradGuard no_grad;
  const auto& config = model.config();
  const double residual =
      config.family == "gpt2" ? 1 / std::sqrt(2.0 * static_cast<double>(config.layers)) : 1;
  for (const auto& parameter : model.named_parameters()) {
    const std::string& name = parameter.key();
    const auto axes = axes_of(name);
    if (name.ends_with(".bias")) {
      parameter.value().zero_();
    } else if (axes[0] == "norm") {
      parameter.value().fill_(1);
    } else {
      const double scale = name.ends_with("c_proj.weight") ? residual : 1;
      fill_normal(parameter.value(), config.init_std * scale, RandomStream(seed, name));
    }
  }
}

}  // namespace tutti::nn
