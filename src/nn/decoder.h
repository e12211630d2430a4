// The one decoder that both families are: families.cc wires its parameters, names and choices.
// Each block hands (x, delta) to the next: the residual stream and what is still to be added to it,
// so that the addition runs inside the next norm. It computes with typed values (value.h), so that
// the same lines run on one device and spread over many.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/mixture.h"
#include "nn/model.h"
#include "nn/value.h"

namespace tutti::nn {

struct DecoderLayer {
  std::string name;
  NormParameters before_attention, before_mlp;
  std::vector<Projection> qkv;  // query, key, value; or one for all three
  torch::Tensor query_norm, key_norm;
  Projection attention_out;
  std::vector<Projection> up;  // gate and up (SwiGLU), or one (GELU)
  Projection down;
  std::optional<MixtureParameters> mixture;  // in place of up and down
};

class Decoder : public LanguageModel {
 public:
  explicit Decoder(const recipe::Model& config);

  StageOutput run_stage(const Stage& stage, const torch::Tensor& in,
                        const TokenBatch& batch) override;
  bool in_stage(const Stage& stage, const std::string& parameter) const override;
  torch::Tensor logits(const torch::Tensor& inputs, const torch::Tensor& documents,
                       KvCache* cache) override;
  torch::Tensor take_routed_counts() override;
  void update_balance(const torch::Tensor& counts) override;

 private:
  friend void wire_llama(Decoder& model);
  friend void wire_gpt2(Decoder& model);

  struct Pass {
    Heads heads;              // of this rank's tokens; all heads
    Rope rope;                // of the positions here
    std::int64_t length = 0;  // of a sequence, over all ranks
    torch::Tensor positions;  // of the tokens here; undefined: all, in order
    torch::Tensor first_key;
    KvCache* cache = nullptr;
    std::int64_t past = 0;
    bool dropping = false;
    DropoutKey key;
    MixtureTokens tokens;
  };
  using Stream = std::pair<Value, Value>;  // x, delta

  // Registers a parameter under its dotted name, making the modules on the way.
  torch::Tensor add(const std::string& name, torch::IntArrayRef shape);
  // The same for several matrices of one width, side by side in memory.
  std::vector<torch::Tensor> add_neighbours(const std::vector<std::string>& names,
                                            const std::vector<std::int64_t>& rows,
                                            std::int64_t columns);
  torch::nn::Module& module_at(const std::string& path);
  void register_as(const std::string& name, const torch::Tensor& value);
  torch::Tensor add_buffer(const std::string& name, const torch::Tensor& value);
  std::vector<Projection> add_up(const std::string& mlp, std::int64_t width);
  MixtureParameters add_mixture(const std::string& mlp);

  void check(const torch::Tensor& inputs, std::int64_t past) const;
  Pass begin(const TokenBatch& batch, KvCache* cache);
  Rope rope(std::int64_t offset, std::int64_t sequence);
  // Adds the routers' losses, if there are any, to `losses`.
  Stream through(const Stage& stage, Stream stream, const Pass& pass, Tensors& losses);
  void count_tokens(const torch::Tensor& targets, Pass& pass) const;
  void keep_counts(std::size_t index, const MixtureTrace& trace);
  Value final_states(const Stream& stream) const;
  Stream embed(const torch::Tensor& inputs, const Pass& pass) const;
  Stream block(std::size_t index, const Stream& in, const Pass& pass, MixtureTrace& trace) const;
  Stream recomputed_block(std::size_t index, const Stream& in, const Pass& pass,
                          MixtureTrace& trace) const;
  // The heads that this rank has of a layer, and the first of them.
  std::pair<Heads, std::int64_t> heads_of(const DecoderLayer& layer, const Pass& pass) const;
  Value attend(std::size_t index, const Value& qkv, const Pass& pass) const;
  torch::Tensor attend_cached(std::size_t index, const torch::Tensor& qkv, const Pass& pass) const;
  torch::Tensor kept(torch::IntArrayRef shape, const std::string& name, const Pass& pass) const;
  Value drop(const Value& x, const std::string& name, const Pass& pass) const;
  // Of the embedding, whose weight a tied head uses first in backward, if both are in the stage.
  Use embedding_use() const;

  std::vector<DecoderLayer> layers_;
  torch::Tensor token_embedding_, position_embedding_, head_;  // head_ undefined: tied
  NormParameters last_norm_;
  Rope table_;             // for positions [0, rows); grows
  bool both_ends_ = true;  // of the stage that runs
  torch::Tensor routed_;   // int64 [layers with experts, experts]; undefined: no mixture
};

void wire_llama(Decoder& model);
void wire_gpt2(Decoder& model);

// Cosines and sines for positions [0, length): fp32 [length, head_dim / 2] with the arithmetic of
// Hugging Face's Llama; "llama3" and "linear" scaling as there.
Rope rope_table(const recipe::Model& config, std::int64_t length);

}  // namespace tutti::nn
