#include <cmath>
#include <vector>

#include "base/error.h"
#include "nn/hugging_face.h"
#include "nn/hugging_face_fields.h"

namespace tutti::nn {
namespace {

constexpr const char* supported =
    "GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
    "MixtralForCausalLM, OlmoeForCausalLM, Qwen2MoeForCausalLM, Qwen3MoeForCausalLM, "
    "Dots1ForCausalLM";

std::string architecture_of(const Json& config, const std::string& origin) {
  if (config.is_object() && config.contains("architectures") &&
      config["architectures"].is_array() && !config["architectures"].empty() &&
      config["architectures"][0].is_string())
    return config["architectures"][0].get<std::string>();
  const std::string kind = config.is_object() ? config.value("model_type", "") : "";
  if (kind == "gpt2") return "GPT2LMHeadModel";
  if (kind == "llama") return "LlamaForCausalLM";
  if (kind == "mistral") return "MistralForCausalLM";
  if (kind == "qwen2") return "Qwen2ForCausalLM";
  if (kind == "qwen3") return "Qwen3ForCausalLM";
  if (kind == "mixtral") return "MixtralForCausalLM";
  if (kind == "olmoe") return "OlmoeForCausalLM";
  if (kind == "qwen2_moe") return "Qwen2MoeForCausalLM";
  if (kind == "qwen3_moe") return "Qwen3MoeForCausalLM";
  if (kind == "dots1") return "Dots1ForCausalLM";
  throw ConfigError({{"architectures", origin, kind, str("must be one of ", supported), ""}});
}

recipe::Model from_gpt2(JsonFields& f) {
  recipe::Model m;
  m.family = "gpt2";
  m.vocab = f.size("vocab_size");
  m.embed = f.size("n_embd");
  m.layers = f.size("n_layer");
  m.heads = m.kv_heads = f.size("n_head");
  m.head_dim = m.embed / m.heads;
  m.mlp = f.size("n_inner", 4 * m.embed);
  m.context = f.size("n_positions", 1024);
  m.norm_eps = f.number("layer_norm_epsilon", 1e-5);
  m.init_std = f.number("initializer_range", 0.02);
  m.tied = f.flag("tie_word_embeddings", true);
  f.must_be("activation_function", f.text("activation_function", "gelu_new"),
            {"gelu_new", "gelu_pytorch_tanh"});
  f.must_be_off("scale_attn_by_inverse_layer_idx");
  if (!f.flag("scale_attn_weights", true))
    f.wrong("scale_attn_weights", "false", "is not supported here");
  if (m.embed % m.heads != 0)
    f.wrong("n_head", str(m.heads), str("must divide n_embd = ", m.embed));
  return m;
}

void read_rope(JsonFields& f, recipe::Model& m) {
  static const Json none = Json::object();
  const char* name = f.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Json& given = f.has(name) && f.json()[name].is_object() ? f.json()[name] : none;
  JsonFields rope(given, std::string());
  m.rope_theta = rope.number("rope_theta", f.number("rope_theta", 10000));
  const std::string kind = rope.text("rope_type", rope.text("type", "default"));
  f.must_be(name, kind, {"default", "linear", "llama3"});
  if (kind != "default") {
    m.rope_scaling.kind = kind;
    m.rope_scaling.factor = rope.number("factor", 1);
    m.rope_scaling.low_frequency_factor = rope.number("low_freq_factor", 1);
    m.rope_scaling.high_frequency_factor = rope.number("high_freq_factor", 4);
    m.rope_scaling.original_context =
        rope.size("original_max_position_embeddings", kind == "llama3" ? 8192 : m.context);
  }
  if (f.number("partial_rotary_factor", 1) != 1)
    f.wrong("partial_rotary_factor", str(f.number("partial_rotary_factor", 1)), "must be 1 here");
  rope.finish();
}

// Whether sliding_window counts.
bool slides(JsonFields& f, const std::string& architecture, std::int64_t layers) {
  if (architecture == "Dots1ForCausalLM")
    return f.has("layer_types")
               ? f.json()["layer_types"].dump().find("sliding") != std::string::npos
               : f.amount("max_window_layers") < layers;
  return f.flag("use_sliding_window", !architecture.starts_with("Qwen"));
}

recipe::Model from_llama(JsonFields& f, const std::string& architecture) {
  const bool qwen2 = architecture == "Qwen2ForCausalLM", qwen3 = architecture == "Qwen3ForCausalLM";
  recipe::Model m;
  m.family = "llama";
  m.vocab = f.size("vocab_size");
  m.embed = f.size("hidden_size");
  m.layers = f.size("num_hidden_layers");
  m.heads = f.size("num_attention_heads");
  m.kv_heads = f.size("num_key_value_heads", m.heads);
  m.head_dim = f.size("head_dim", std::max<std::int64_t>(1, m.embed / m.heads));
  m.mlp = f.size("intermediate_size");
  m.context = f.size("max_position_embeddings", 2048);
  m.norm_eps = f.number("rms_norm_eps", 1e-6);
  m.init_std = f.number("initializer_range", 0.02);
  m.tied = f.flag("tie_word_embeddings", false);
  m.qkv_bias = qwen2;
  m.qk_norm = qwen3;
  if (has_experts(architecture)) read_experts(f, architecture, m);
  f.must_be("hidden_act", f.text("hidden_act", "silu"), {"silu", "swish"});
  f.must_be_off("attention_bias");  // a bias on o_proj too
  f.must_be_off("mlp_bias");
  if (f.has("sliding_window") && slides(f, architecture, m.layers) &&
      f.amount("sliding_window") < m.context)
    f.wrong("sliding_window", f.json()["sliding_window"].dump(),
            "is not supported below max_position_embeddings");
  if (m.heads % m.kv_heads != 0)
    f.wrong("num_key_value_heads", str(m.kv_heads), "must divide num_attention_heads");
  if (m.head_dim % 2 != 0) f.wrong("head_dim", str(m.head_dim), "must be even");
  read_rope(f, m);
  return m;
}

Json rope_json(const recipe::Model& m) {
  Json rope{{"rope_theta", m.rope_theta},
            {"rope_type", m.rope_scaling.kind == "none" ? "default" : m.rope_scaling.kind}};
  if (m.rope_scaling.kind != "none") rope["factor"] = m.rope_scaling.factor;
  if (m.rope_scaling.kind == "llama3") {
    rope["low_freq_factor"] = m.rope_scaling.low_frequency_factor;
    rope["high_freq_factor"] = m.rope_scaling.high_frequency_factor;
    rope["original_max_position_embeddings"] = m.rope_scaling.original_context;
  }
  return rope;
}

const char* torch_name(DType type) {
  return type == DType::bf16 ? "bfloat16" : type == DType::f16 ? "float16" : "float32";
}

Json gpt2_json(const recipe::Model& m) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"vocab_size", m.vocab},
          {"n_embd", m.embed},
          {"n_layer", m.layers},
          {"n_head", m.heads},
          {"n_inner", m.mlp},
          {"n_positions", m.context},
          {"layer_norm_epsilon", m.norm_eps},
          {"resid_pdrop", m.dropout},
          {"embd_pdrop", m.dropout},
          {"attn_pdrop", m.dropout}};
}

Json llama_json(const recipe::Model& m) {
  if (m.moe.experts == 0 && m.qk_norm_whole)
    throw ConfigError({{"model.qk_norm_whole", "", "on",
                        "cannot be exported without experts: no architecture of Hugging Face that "
                        "we know has it",
                        ""}});
  if (m.moe.experts == 0 && m.qkv_bias && m.qk_norm)
    throw ConfigError({{"model.qk_norm", "", "true",
                        "cannot be exported together with model.qkv_bias: no architecture of "
                        "Hugging Face has both",
                        ""}});
  const std::string architecture = m.moe.experts > 0 ? architecture_with_experts(m)
                                   : m.qk_norm       ? "Qwen3ForCausalLM"
                                   : m.qkv_bias      ? "Qwen2ForCausalLM"
                                                     : "LlamaForCausalLM";
  Json json{{"architectures", {architecture}},
            {"model_type", m.qk_norm    ? "qwen3"
                           : m.qkv_bias ? "qwen2"
                                        : "llama"},
            {"hidden_act", "silu"},
            {"vocab_size", m.vocab},
            {"hidden_size", m.embed},
            {"intermediate_size", m.mlp},
            {"num_hidden_layers", m.layers},
            {"num_attention_heads", m.heads},
            {"num_key_value_heads", m.kv_heads},
            {"head_dim", m.head_dim},
            {"max_position_embeddings", m.context},
            {"rms_norm_eps", m.norm_eps},
            {"rope_theta", m.rope_theta},
            {"rope_scaling", m.rope_scaling.kind == "none" ? Json() : rope_json(m)},
            {"rope_parameters", rope_json(m)},
            {"attention_bias", false},
            {"attention_dropout", m.dropout},
            {"mlp_bias", false}};
  if (m.moe.experts > 0) json.update(experts_json(m));
  return json;
}

}  // namespace

recipe::Model from_hugging_face(const Json& config, const std::string& origin) {
  const std::string architecture = architecture_of(config, origin);
  JsonFields fields(config, origin);
  recipe::Model model;
  if (architecture == "GPT2LMHeadModel") {
    model = from_gpt2(fields);
  } else if (std::string_view(supported).find(architecture) != std::string_view::npos &&
             !architecture.empty()) {
    model = from_llama(fields, architecture);
  } else {
    fields.wrong("architectures", architecture, str("must be one of ", supported));
  }
  fields.finish();
  return model;
}

Json to_hugging_face(const recipe::Model& m, DType dtype) {
  Json json = m.family == "gpt2" ? gpt2_json(m) : llama_json(m);
  json["initializer_range"] = m.init_std;
  json["tie_word_embeddings"] = m.tied;
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = torch_name(dtype);
  json["use_cache"] = true;
  return json;
}

recipe::Model read_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  if (!fs::exists(path))
    throw ConfigError({{"model.from", "", folder.string(),
                        "must be a Hugging Face folder: config.json is not there", ""}});
  return from_hugging_face(parse_json(read_file(path), path.string()), path.string());
}

}  // namespace tutti::nn
