#include "nn/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "nn/destination.h"
#include "nn/dropout.h"
#include "nn/plain.h"
#include "nn/record.h"

namespace tutti::nn {

Decoder::Decoder(const recipe::Model& config) : LanguageModel(config) {
  if (config.family == "gpt2")
    wire_gpt2(*this);
  else
    wire_llama(*this);
}

torch::nn::Module& Decoder::module_at(const std::string& path) {
  torch::nn::Module* at = this;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const auto children = at->named_children();
    const auto* found = children.find(name);
    at = found ? found->get()
               : at->register_module(name, std::make_shared<torch::nn::Module>()).get();
    begin = end + 1;
  }
  return *at;
}

void Decoder::register_as(const std::string& name, const torch::Tensor& value) {
  const std::size_t dot = name.rfind('.');
  module_at(name.substr(0, dot)).register_parameter(name.substr(dot + 1), value);
}

torch::Tensor Decoder::add(const std::string& name, torch::IntArrayRef shape) {
  torch::Tensor value = torch::empty(shape, torch::kFloat);
  register_as(name, value);
  return value;
}

std::vector<torch::Tensor> Decoder::add_neighbours(const std::vector<std::string>& names,
                                                   const std::vector<std::int64_t>& rows,
                                                   std::int64_t columns) {
  std::int64_t total = 0;
  for (std::int64_t r : rows) total += r;
  const torch::Tensor all = torch::empty({total, columns}, torch::kFloat);
  std::vector<torch::Tensor> parts;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < names.size(); at += rows[i++]) {
    parts.push_back(all.narrow(0, at, rows[i]).variable_data());
    register_as(names[i], parts.back());
  }
  return parts;
}

void Decoder::check(const torch::Tensor& inputs, std::int64_t past) const {
  TUTTI_ASSERT(inputs.dim() == 2 && inputs.scalar_type() == torch::kLong);
  if (past + inputs.size(1) > config_.context)
    throw ConfigError(str("model.context = ", config_.context, ": too short for a sequence of ",
                          past + inputs.size(1), " tokens; raise model.context or shorten it"));
  if (!inputs.is_cpu() || inputs.numel() == 0) return;
  const auto ids = inputs.contiguous();
  const auto* begin = ids.data_ptr<std::int64_t>();
  const auto [low, high] = std::minmax_element(begin, begin + ids.numel());
  if (*low < 0 || *high >= config_.vocab)
    throw ConfigError(str("token id ", *low < 0 ? *low : *high,
                          " is outside the model's vocabulary of ", config_.vocab,
                          "; was the data made by another tokenizer?"));
}

Rope Decoder::rope(std::int64_t offset, std::int64_t sequence) {
  if (config_.family == "gpt2") return {};
  const std::int64_t end = offset + sequence;
  const auto device = token_embedding_.device();
  if (!table_.cosine.defined() || table_.cosine.size(0) < end || table_.cosine.device() != device) {
    table_ = rope_table(config_, std::max(end, std::min<std::int64_t>(config_.context, 2 * end)));
    table_ = {table_.cosine.to(device), table_.sine.to(device)};
  }
  return {table_.cosine.narrow(0, offset, sequence), table_.sine.narrow(0, offset, sequence)};
}

Decoder::Pass Decoder::begin(const torch::Tensor& inputs, const torch::Tensor& documents,
                             KvCache* cache) {
  Pass pass;
  pass.cache = cache;
  pass.past = cache ? cache->length_ : 0;
  TUTTI_ASSERT(!cache || !documents.defined());
  check(inputs, pass.past);
  pass.heads = {inputs.size(0), inputs.size(1), config_.heads, config_.kv_heads, config_.head_dim};
  pass.rope = rope(pass.past, inputs.size(1));
  if (documents.defined()) pass.first_key = first_keys(documents);
  pass.dropping = is_training() && config_.dropout > 0;
  pass.key = dropout_key_;
  return pass;
}

torch::Tensor Decoder::drop(const torch::Tensor& x, const std::string& name,
                            const Pass& pass) const {
  if (!pass.dropping) return x;
  const auto mask = keep_mask({pass.heads.batch, pass.heads.sequence, x.size(1)}, config_.dropout,
                              name, pass.key, x.device());
  return x * mask.view(x.sizes()).to(x.scalar_type());
}

Decoder::Stream Decoder::embed(const torch::Tensor& inputs, const Pass& pass) {
  const auto x = embedding(inputs, token_embedding_, head_.defined() ? Use::only : Use::second);
  if (!position_embedding_.defined()) return {drop(x, "embedding", pass), {}};
  const auto positions =
      position_embedding(position_embedding_, pass.heads.batch, pass.heads.sequence, pass.past);
  if (pass.dropping) return {drop(x + positions, "embedding", pass), {}};
  return {x, positions};
}

torch::Tensor Decoder::attend_cached(std::size_t index, const torch::Tensor& qkv,
                                     const Pass& pass) const {
  const Heads& h = pass.heads;
  KvCache& cache = *pass.cache;
  const std::int64_t total = pass.past + h.sequence;
  const auto now = plain::split_and_rotate(qkv, h, pass.rope);
  if (cache.keys_.size() <= index) {
    cache.keys_.resize(layers_.size());
    cache.values_.resize(layers_.size());
  }
  const auto append = [&](torch::Tensor& held, const torch::Tensor& more) {
    if (!held.defined() || held.size(2) < total) {
      auto larger = torch::empty(
          {h.batch, h.kv_heads, std::max<std::int64_t>(64, 2 * total), h.dim}, more.options());
      if (held.defined()) larger.narrow(2, 0, pass.past).copy_(held.narrow(2, 0, pass.past));
      held = larger;
    }
    held.narrow(2, pass.past, h.sequence).copy_(more);
    return held.narrow(2, 0, total);
  };
  const auto key = append(cache.keys_[index], now.key);
  const auto value = append(cache.values_[index], now.value);
  const auto mask = h.sequence == 1 ? std::optional<torch::Tensor>()
                                    : plain::seen(h, pass.past, {}, qkv.device());
  return at::scaled_dot_product_attention(now.query, key, value, mask, 0.0, false, std::nullopt,
                                          h.heads != h.kv_heads)
      .transpose(1, 2)
      .reshape({h.tokens(), h.heads * h.dim});
}

torch::Tensor Decoder::attend(std::size_t index, const torch::Tensor& qkv, const Pass& pass) const {
  const Heads& h = pass.heads;
  if (pass.cache) return attend_cached(index, qkv, pass);
  if (!pass.dropping) return attention(qkv, h, pass.rope, pass.first_key);
  const auto keep = keep_mask({h.batch, h.heads, h.sequence, h.sequence}, config_.dropout,
                              layers_[index].name + ".attention_weights", pass.key, qkv.device());
  return plain::attend(plain::split_and_rotate(qkv, h, pass.rope), h,
                       plain::seen(h, 0, pass.first_key, qkv.device()), keep);
}

Decoder::Stream Decoder::block(std::size_t index, const Stream& in, const Pass& pass) const {
  const DecoderLayer& layer = layers_[index];
  const double eps = config_.norm_eps;
  const auto [x, normed] = add_norm(in.first, in.second, layer.before_attention.weight,
                                    layer.before_attention.bias, eps);
  torch::Tensor qkv = linear(normed, layer.qkv);
  if (layer.query_norm.defined())
    qkv = norm_heads(qkv, pass.heads, layer.query_norm, layer.key_norm, eps);
  const auto mixed = linear(attend(index, qkv, pass), {layer.attention_out});
  const auto [y, again] = add_norm(x, drop(mixed, layer.name + ".attention", pass),
                                   layer.before_mlp.weight, layer.before_mlp.bias, eps);
  const auto wide = linear(again, layer.up);
  const auto active = layer.up.size() == 2 ? swiglu(wide) : nn::gelu(wide);
  return {y, drop(linear(active, {layer.down}), layer.name + ".mlp", pass)};
}

torch::Tensor Decoder::final_states(const torch::Tensor& inputs, Pass& pass) {
  Stream stream = embed(inputs, pass);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (recompute_ && !pass.cache) {
      const auto out = recomputed(
          [this, i, pass](const Tensors& in) -> Tensors {
            const Stream result = block(i, {in[0], in[1]}, pass);
            return {result.first, result.second};
          },
          {stream.first, stream.second});
      stream = {out[0], out[1]};
    } else {
      stream = block(i, stream, pass);
    }
  }
  if (pass.cache) pass.cache->length_ += pass.heads.sequence;
  return add_norm(stream.first, stream.second, last_norm_.weight, last_norm_.bias, config_.norm_eps)
      .second;
}

Loss Decoder::loss(const TokenBatch& batch) {
  Pass pass = begin(batch.inputs, batch.documents, nullptr);
  TUTTI_ASSERT(batch.targets.sizes() == batch.inputs.sizes());
  const auto states = final_states(batch.inputs, pass);
  const bool tied = !head_.defined();
  return {head_loss(states, tied ? token_embedding_ : head_, batch.targets,
                    tied ? Use::first : Use::only),
          (batch.targets >= 0).sum().item<std::int64_t>()};
}

torch::Tensor Decoder::logits(const torch::Tensor& inputs, const torch::Tensor& documents,
                              KvCache* cache) {
  Pass pass = begin(inputs, documents, cache);
  const auto states = final_states(inputs, pass);
  return torch::linear(states, sunk(head_.defined() ? head_ : token_embedding_,
                                    head_.defined() ? Use::only : Use::first))
      .view({inputs.size(0), inputs.size(1), config_.vocab});
}

}  // namespace tutti::nn
