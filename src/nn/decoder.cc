#include "nn/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "base/fault.h"
#include "nn/destination.h"
#include "nn/discard.h"
#include "nn/dropout.h"
#include "nn/plain.h"
#include "nn/record.h"

namespace tutti::nn {
namespace {

// This rank's part of [batch, sequence] tokens.
torch::Tensor here(const torch::Tensor& tokens, const torch::Tensor& positions) {
  return positions.defined() ? tokens.index_select(1, positions) : tokens;
}

}  // namespace

Decoder::Decoder(const recipe::Model& config) : LanguageModel(config) {
  if (config.family == "gpt2")
    wire_gpt2(*this);
  else
    wire_llama(*this);
  if (config.moe.experts > 0)
    routed_ =
        torch::zeros({config.layers - config.moe.dense_layers, config.moe.experts}, torch::kLong);
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

torch::Tensor Decoder::add_buffer(const std::string& name, const torch::Tensor& value) {
  const std::size_t dot = name.rfind('.');
  return module_at(name.substr(0, dot)).register_buffer(name.substr(dot + 1), value);
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

Decoder::Pass Decoder::begin(const TokenBatch& batch, KvCache* cache) {
  Pass pass;
  pass.cache = cache;
  pass.past = cache ? cache->length_ : 0;
  pass.length = batch.inputs.size(1);
  TUTTI_ASSERT(!cache || !batch.documents.defined());
  check(batch.inputs, pass.past);
  pass.rope = rope(pass.past, pass.length);
  pass.positions = spread().positions(pass.length);
  if (batch.documents.defined()) pass.first_key = first_keys(batch.documents);
  pass.heads = {batch.inputs.size(0), pass.length, config_.heads, config_.kv_heads,
                config_.head_dim};
  if (pass.positions.defined()) {
    pass.heads.sequence = pass.positions.size(0);
    if (pass.rope.cosine.defined())
      pass.rope = {pass.rope.cosine.index_select(0, pass.positions),
                   pass.rope.sine.index_select(0, pass.positions)};
    if (pass.first_key.defined())
      pass.first_key = pass.first_key.index_select(1, pass.positions).contiguous();
  }
  pass.dropping = is_training() && config_.dropout > 0;
  pass.key = dropout_key_;
  return pass;
}

// A mask for whole sequences, of which dimension 1 or 2 are positions; the rows that are here.
torch::Tensor Decoder::kept(torch::IntArrayRef shape, const std::string& name,
                            const Pass& pass) const {
  const auto mask = keep_mask(shape, config_.dropout, name, pass.key, token_embedding_.device());
  const std::int64_t dim = shape.size() == 4 ? 2 : 1;
  if (!pass.positions.defined()) return mask;
  if (fault("dropout-position")) return mask.narrow(dim, 0, pass.positions.size(0));
  return mask.index_select(dim, pass.positions);
}

Value Decoder::drop(const Value& x, const std::string& name, const Pass& pass) const {
  if (!pass.dropping) return x;
  const auto mask = kept({pass.heads.batch, pass.length, x.tensor.size(1)}, name, pass);
  return dropped(x, mask.reshape({-1, x.tensor.size(1)}));
}

Use Decoder::embedding_use() const {
  return head_.defined() || !both_ends_ ? Use::only : Use::second;
}

Decoder::Stream Decoder::embed(const torch::Tensor& inputs, const Pass& pass) const {
  const Value x = embedded(inputs, token_embedding_, embedding_use());
  if (!position_embedding_.defined()) return {drop(x, "embedding", pass), {}};
  const torch::Tensor& weight = position_embedding_;
  const Value positions =
      to_stream(pass.positions.defined()
                    ? embedding(pass.positions.repeat({pass.heads.batch}), weight, Use::only)
                    : position_embedding(weight, pass.heads.batch, pass.heads.sequence, pass.past),
                weight);
  if (!pass.dropping) return {x, positions};
  const Value sum{x.tensor + positions.tensor, x.rows, x.type};
  return {drop(sum, "embedding", pass), {}};
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

std::pair<Heads, std::int64_t> Decoder::heads_of(const DecoderLayer& layer,
                                                 const Pass& pass) const {
  Heads heads = pass.heads;
  const Projection& query = layer.qkv[0];
  const bool together = layer.qkv.size() == 1;
  const std::int64_t width = query.weight.size(query.transposed ? 1 : 0);
  heads.heads = width / heads.dim / (together ? 3 : 1);
  heads.kv_heads = together ? heads.heads : layer.qkv[1].weight.size(0) / heads.dim;
  return {heads, spread().part(query.weight).begin / heads.dim};
}

Value Decoder::attend(std::size_t index, const Value& qkv, const Pass& pass) const {
  const auto [heads, first] = heads_of(layers_[index], pass);
  if (pass.cache) return {attend_cached(index, qkv.tensor, pass), qkv.rows, qkv.type};
  torch::Tensor keep;
  if (pass.dropping)
    keep = kept({heads.batch, config_.heads, pass.length, pass.length},
                layers_[index].name + ".attention_weights", pass);
  if (pass.dropping && heads.heads < config_.heads)  // the others' is let go of
    keep = keep.narrow(1, first, heads.heads).clone();
  return attention(qkv, {{}, heads, pass.rope, pass.first_key, keep, pass.length});
}

Decoder::Stream Decoder::block(std::size_t index, const Stream& in, const Pass& pass,
                               MixtureTrace& trace) const {
  const DecoderLayer& layer = layers_[index];
  const double eps = config_.norm_eps;
  const auto [x, normed] = add_norm(in.first, in.second, layer.before_attention, eps);
  Value qkv = linear(normed, layer.qkv);
  const bool selective = recompute(index) == recipe::Recompute::selective && !pass.cache;
  // Rows of a sequence-parallel stream are gathered for products, which keep the copy.
  const bool norms = selective && in.first.type == Type::replicate();
  const auto renormed = [eps](const Value& sum, const NormParameters& p) {
    return [sum = sum.tensor.detach(), p, eps] {
      return nn::add_norm(sum, {}, p.weight, p.bias, eps).second;
    };
  };
  if (norms) discard(normed.tensor, {qkv.tensor}, renormed(x, layer.before_attention));
  if (layer.query_norm.defined())
    qkv = config_.qk_norm_whole
              ? norm_whole(qkv, layer.query_norm, layer.key_norm, eps)
              : norm_heads(qkv, heads_of(layer, pass).first, layer.query_norm, layer.key_norm, eps);
  const Value attended = linear(attend(index, qkv, pass), {layer.attention_out});
  const auto [y, again] =
      add_norm(x, drop(attended, layer.name + ".attention", pass), layer.before_mlp, eps);
  if (layer.mixture) {
    const Value mixed = mixture(again, *layer.mixture, config_.moe, pass.tokens, trace);
    if (norms) discard(again.tensor, {mixed.tensor, trace.loss}, renormed(y, layer.before_mlp));
    return {y, drop(mixed, layer.name + ".mlp", pass)};
  }
  const Value wide = linear(again, layer.up);
  const auto activated = [gated = layer.up.size() == 2](const Value& in) {
    return gated ? swiglu(in) : gelu(in);
  };
  const Value active = activated(wide);
  const Value lowered = linear(active, {layer.down});
  if (norms) discard(again.tensor, {wide.tensor}, renormed(y, layer.before_mlp));
  if (selective)
    discard(active.tensor, {lowered.tensor},
            [activated, wide = Value{wide.tensor.detach(), wide.rows, wide.type}] {
              return activated(wide).tensor;
            });
  return {y, drop(lowered, layer.name + ".mlp", pass)};
}

Decoder::Stream Decoder::recomputed_block(std::size_t index, const Stream& in, const Pass& pass,
                                          MixtureTrace& trace) const {
  const Value like{{}, in.first.rows, in.first.type};
  const auto kept = std::make_shared<MixtureTrace>();
  const auto out = recomputed(
      [this, index, like, pass, kept](const Tensors& x) -> Tensors {
        const Stream result =
            block(index, {{x[0], like.rows, like.type}, {x[1], like.rows, like.type}}, pass, *kept);
        Tensors all{result.first.tensor, result.second.tensor};
        if (kept->loss.defined()) all.push_back(std::exchange(kept->loss, {}));
        return all;
      },
      {in.first.tensor, in.second.tensor});
  trace = *kept;
  if (out.size() > 2) trace.loss = out[2];
  return {{out[0], like.rows, like.type}, {out[1], like.rows, like.type}};
}

Decoder::Stream Decoder::through(const Stage& stage, Stream stream, const Pass& pass,
                                 Tensors& losses) {
  for (std::int64_t i = stage.begin; i < stage.end; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const std::string& name = layers_[index].name;
    const Tensors in = spread().before_unit(name, {stream.first.tensor, stream.second.tensor});
    const Stream given{{in[0], stream.first.rows, stream.first.type},
                       {in[1], stream.first.rows, stream.first.type}};
    MixtureTrace trace;
    stream = recompute(index) == recipe::Recompute::full && !pass.cache
                 ? recomputed_block(index, given, pass, trace)
                 : block(index, given, pass, trace);
    if (trace.loss.defined()) losses.push_back(trace.loss);
    keep_counts(index, trace);
    const Tensors out = spread().after_unit(name, {stream.first.tensor, stream.second.tensor});
    stream.first.tensor = out[0];
    stream.second.tensor = out[1];
  }
  if (pass.cache) pass.cache->length_ += pass.heads.sequence;
  return stream;
}

Value Decoder::final_states(const Stream& stream) const {
  return add_norm(stream.first, stream.second, last_norm_, config_.norm_eps).second;
}

StageOutput Decoder::run_stage(const Stage& stage, const torch::Tensor& in,
                               const TokenBatch& batch) {
  Pass pass = begin(batch, nullptr);
  TUTTI_ASSERT(batch.targets.sizes() == batch.inputs.sizes());
  TUTTI_ASSERT(in.defined() != stage.first);
  both_ends_ = stage.first && stage.last;
  const torch::Tensor targets = here(batch.targets, pass.positions);
  if (is_training() && config_.moe.experts > 0) count_tokens(targets, pass);
  const Value stream_in{in, pass.heads.tokens(), spread().stream()};
  Tensors losses;
  const Stream stream = through(
      stage, stage.first ? embed(here(batch.inputs, pass.positions), pass) : Stream{stream_in, {}},
      pass, losses);
  Loss loss;
  for (const auto& one : losses) {
    const torch::Tensor wide = one.to(torch::kDouble);
    loss.routers = loss.routers.defined() ? loss.routers + wide : wide;
  }
  if (!stage.last) {
    loss.sum = loss.routers;
    return {
        stream.second.defined() ? stream.first.tensor + stream.second.tensor : stream.first.tensor,
        loss};
  }
  const bool tied = !head_.defined();
  const Use use = tied && both_ends_ ? Use::first : Use::only;
  loss.sum = head_loss(final_states(stream), tied ? token_embedding_ : head_, targets, use);
  if (loss.routers.defined()) loss.sum = loss.sum.to(torch::kDouble) + loss.routers;
  loss.tokens = (targets >= 0).sum().item<std::int64_t>();
  return {{}, loss};
}

bool Decoder::in_stage(const Stage& stage, const std::string& parameter) const {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (parameter.starts_with(layers_[i].name + "."))
      return static_cast<std::int64_t>(i) >= stage.begin &&
             static_cast<std::int64_t>(i) < stage.end;
  if (parameter.ends_with("embed_tokens.weight") || parameter.ends_with("wte.weight"))
    return stage.first || (stage.last && !head_.defined());
  if (parameter.ends_with("wpe.weight")) return stage.first;
  return stage.last;  // the last norm and the head
}

torch::Tensor Decoder::logits(const torch::Tensor& inputs, const torch::Tensor& documents,
                              KvCache* cache) {
  const Pass pass = begin({inputs, {}, documents}, cache);
  both_ends_ = true;
  Tensors losses;  // none: nothing is counted
  const Value states =
      final_states(through({0, config_.layers}, embed(inputs, pass), pass, losses));
  return torch::linear(states.tensor, sunk(head_.defined() ? head_ : token_embedding_,
                                           head_.defined() ? Use::only : Use::first))
      .view({inputs.size(0), inputs.size(1), config_.vocab});
}

}  // namespace tutti::nn
