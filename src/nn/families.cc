// What makes a Decoder a Llama or a GPT-2: names, shapes and wiring of its parameters.
#include "base/error.h"
#include "nn/decoder.h"

namespace tutti::nn {

void wire_llama(Decoder& m) {
  const recipe::Model& c = m.config();
  const std::int64_t query = c.heads * c.head_dim, key = c.kv_heads * c.head_dim;
  m.token_embedding_ = m.add("model.embed_tokens.weight", {c.vocab, c.embed});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    DecoderLayer layer;
    layer.name = str("model.layers.", i);
    const std::string attention = layer.name + ".self_attn.", mlp = layer.name + ".mlp.";
    const auto qkv = m.add_neighbours(
        {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
        {query, key, key}, c.embed);
    const auto bias = [&](const char* which, std::int64_t size) {
      return c.qkv_bias ? m.add(attention + which, {size}) : torch::Tensor();
    };
    layer.qkv = {{qkv[0], bias("q_proj.bias", query)},
                 {qkv[1], bias("k_proj.bias", key)},
                 {qkv[2], bias("v_proj.bias", key)}};
    layer.attention_out.weight = m.add(attention + "o_proj.weight", {c.embed, query});
    if (c.qk_norm) {
      const bool whole = c.qk_norm_whole;
      layer.query_norm = m.add(attention + "q_norm.weight", {whole ? query : c.head_dim});
      layer.key_norm = m.add(attention + "k_norm.weight", {whole ? key : c.head_dim});
    }
    if (c.moe.experts > 0 && i >= c.moe.dense_layers) {
      layer.mixture = m.add_mixture(mlp);
    } else {
      layer.up = m.add_up(mlp, c.mlp);
      layer.down.weight = m.add(mlp + "down_proj.weight", {c.embed, c.mlp});
    }
    layer.before_attention.weight = m.add(layer.name + ".input_layernorm.weight", {c.embed});
    layer.before_mlp.weight = m.add(layer.name + ".post_attention_layernorm.weight", {c.embed});
    m.layers_.push_back(layer);
  }
  m.last_norm_.weight = m.add("model.norm.weight", {c.embed});
  if (!c.tied) m.head_ = m.add("lm_head.weight", {c.vocab, c.embed});
}

void wire_gpt2(Decoder& m) {
  const recipe::Model& c = m.config();
  const auto norm = [&](const std::string& name) {
    return NormParameters{m.add(name + ".weight", {c.embed}), m.add(name + ".bias", {c.embed})};
  };
  const auto projection = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    return Projection{m.add(name + ".weight", {in, out}), m.add(name + ".bias", {out}), true};
  };
  m.token_embedding_ = m.add("transformer.wte.weight", {c.vocab, c.embed});
  m.position_embedding_ = m.add("transformer.wpe.weight", {c.context, c.embed});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    DecoderLayer layer;
    layer.name = str("transformer.h.", i);
    layer.before_attention = norm(layer.name + ".ln_1");
    layer.qkv = {projection(layer.name + ".attn.c_attn", c.embed, 3 * c.embed)};
    layer.attention_out = projection(layer.name + ".attn.c_proj", c.embed, c.embed);
    layer.before_mlp = norm(layer.name + ".ln_2");
    layer.up = {projection(layer.name + ".mlp.c_fc", c.embed, c.mlp)};
    layer.down = projection(layer.name + ".mlp.c_proj", c.mlp, c.embed);
    m.layers_.push_back(layer);
  }
  m.last_norm_ = norm("transformer.ln_f");
  if (!c.tied) m.head_ = m.add("lm_head.weight", {c.vocab, c.embed});
}

}  // namespace tutti::nn
