// The one decoder that both families are: families.cc wires its parameters, names and choices.
// Each block hands (x, delta) to the next: the residual stream and what is still to be added to it,
// so that the addition runs inside the next norm.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nn/model.h"
#include "nn/ops.h"

namespace tutti::nn {

struct NormParameters {
  torch::Tensor weight, bias;  // bias undefined: RMS norm
};

struct DecoderLayer {
  std::string name;
  NormParameters before_attention, before_mlp;
  std::vector<Projection> qkv;  // query, key, value; or one for all three
  torch::Tensor query_norm, key_norm;
  Projection attention_out;
  std::vector<Projection> up;  // gate and up (SwiGLU), or one (GELU)
  Projection down;
};

class Decoder : public LanguageModel {
 public:
  explicit Decoder(const recipe::Model& config);

  Loss loss(const TokenBatch& batch) override;
  torch::Tensor logits(const torch::Tensor& inputs, const torch::Tensor& documents,
                       KvCache* cache) override;

 private:
  friend void wire_llama(Decoder& model);
  friend void wire_gpt2(Decoder& model);

  struct Pass {
    Heads heads;
    Rope rope;
    torch::Tensor first_key;
    KvCache* cache = nullptr;
    std::int64_t past = 0;
    bool dropping = false;
    DropoutKey key;
  };
  using Stream = std::pair<torch::Tensor, torch::Tensor>;  // x, delta

  // Registers a parameter under its dotted name, making the modules on the way.
  torch::Tensor add(const std::string& name, torch::IntArrayRef shape);
  // The same for several matrices of one width, side by side in memory.
  std::vector<torch::Tensor> add_neighbours(const std::vector<std::string>& names,
                                            const std::vector<std::int64_t>& rows,
                                            std::int64_t columns);
  torch::nn::Module& module_at(const std::string& path);
  void register_as(const std::string& name, const torch::Tensor& value);

  void check(const torch::Tensor& inputs, std::int64_t past) const;
  Pass begin(const torch::Tensor& inputs, const torch::Tensor& documents, KvCache* cache);
  Rope rope(std::int64_t offset, std::int64_t sequence);
  torch::Tensor final_states(const torch::Tensor& inputs, Pass& pass);
  Stream embed(const torch::Tensor& inputs, const Pass& pass);
  Stream block(std::size_t index, const Stream& in, const Pass& pass) const;
  torch::Tensor attend(std::size_t index, const torch::Tensor& qkv, const Pass& pass) const;
  torch::Tensor attend_cached(std::size_t index, const torch::Tensor& qkv, const Pass& pass) const;
  torch::Tensor drop(const torch::Tensor& x, const std::string& name, const Pass& pass) const;

  std::vector<DecoderLayer> layers_;
  torch::Tensor token_embedding_, position_embedding_, head_;  // head_ undefined: tied
  NormParameters last_norm_;
  Rope table_;  // for positions [0, rows); grows
};

void wire_llama(Decoder& model);
void wire_gpt2(Decoder& model);

// Cosines and sines for positions [0, length): fp32 [length, head_dim / 2] with the arithmetic of
// Hugging Face's Llama; "llama3" and "linear" scaling as there.
Rope rope_table(const recipe::Model& config, std::int64_t length);

}  // namespace tutti::nn
