// Language models: GPT-2 and the Llama family (Llama 2/3, Mistral, Qwen 2/3 dense) behind one
// class. Single-device code that knows nothing of ranks. Registered parameter names, shapes and
// layouts are Hugging Face's (model.layers.0.self_attn.q_proj.weight,
// transformer.h.0.attn.c_attn.weight, ...), so that a state dict and a checkpoint folder hold the
// same names. A tied head has no parameter.
//
// On CPU in fp32 the fused operations of ops.h run; elsewhere the same operations composed of torch
// ops. Parameters may be cast copies (bf16, fp16): norms, softmax, rotary angles and the loss then
// still compute in fp32. Bitwise reproducible for a fixed number of intra-op threads.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/grad_sink.h"
#include "nn/spread.h"
#include "recipe/recipe.h"

namespace tutti::nn {

struct TokenBatch {
  torch::Tensor inputs;   // int64 [batch, sequence], 0 <= id < vocab
  torch::Tensor targets;  // int64 [batch, sequence]; -1: no loss there
  torch::Tensor
      documents;  // int32 [batch, sequence] or undefined; attention stays among equal ids,
                  // which must lie side by side. Positions count from the sample's start.
};

// One loss rule: a numerator and a denominator, divided once, by the trainer.
struct Loss {
  // Scalar with grad: cross-entropy in nats, summed over valid targets; fp32. With routers' losses
  // they are added to it in fp64, so that stages that are added up later make the same sum.
  torch::Tensor sum;
  std::int64_t tokens = 0;  // valid targets
  torch::Tensor routers;    // fp64: the part of `sum` that is the routers' losses; undefined: none
};

// Keys the dropout of one forward pass: a pure function of (seed, parameter-like name, step,
// first_sample + row, position in the sample), the same for every layout.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::int64_t first_sample = 0;  // index in the global batch of row 0 of this micro-batch
};

// Keys and values of the tokens seen so far; see generate.h. A fresh one is empty.
class KvCache {
 public:
  std::int64_t length() const { return length_; }  // positions held

 private:
  friend class Decoder;
  std::vector<torch::Tensor> keys_, values_;  // a layer: [batch, kv_heads, capacity, head_dim]
  std::int64_t length_ = 0;
};

// A run of layers that a pipeline's rank computes: layers [begin, end), the embedding before them
// if `first`, the head and the loss behind them if `last`.
struct Stage {
  std::int64_t begin = 0, end = 0;
  bool first = true, last = true;
};

struct StageOutput {
  torch::Tensor activation;  // [tokens here, embed]: the residual stream; undefined after the last
  Loss loss;                 // after the last; before it, the stage's routers' losses, if any
};

class LanguageModel : public torch::nn::Module {
 public:
  explicit LanguageModel(const recipe::Model& config) : config_(config) {}

  // Forward pass with loss. train() mode applies dropout. Inputs longer than config().context and
  // ids outside the vocabulary throw ConfigError.
  Loss loss(const TokenBatch& batch) { return run_stage({0, config_.layers}, {}, batch).loss; }

  // The same, a stage at a time: `in` is the activation of the stage before (undefined for the
  // first). Every stage is given the whole batch. Bit-identical to loss().
  virtual StageOutput run_stage(const Stage& stage, const torch::Tensor& in,
                                const TokenBatch& batch) = 0;
  // Whether a stage needs the parameter of this name. A tied embedding is needed at both ends.
  virtual bool in_stage(const Stage& stage, const std::string& parameter) const = 0;

  // [batch, sequence, vocab] in the parameters' dtype. With a cache, `inputs` continue the
  // positions the cache holds and are added to it (documents must be undefined then).
  virtual torch::Tensor logits(const torch::Tensor& inputs, const torch::Tensor& documents = {},
                               KvCache* cache = nullptr) = 0;

  // Of a mixture of experts in training; none otherwise (an undefined tensor). How often the tokens
  // with a target chose each expert in the passes since the last call: int64 [layers with experts,
  // experts], zeros for layers that did not run. Call it before a step, to forget one that failed,
  // and after its passes; sum it over ranks that had other micro-batches or other stages; give the
  // sum to update_balance when the step is applied. Exact, so the same for every layout.
  virtual torch::Tensor take_routed_counts() { return {}; }
  // Moves the routers' biases, and what the global aux loss knows of the load. In place.
  virtual void update_balance(const torch::Tensor& /*counts*/) {}

  // Parameter name -> the logical axis of each dimension: vocab, embed, heads, kv_heads, qkv, mlp,
  // position, norm, expert, router. "heads" is heads x head_dim, "qkv" GPT-2's three in one, "norm"
  // and "router" are never cut.
  std::map<std::string, std::vector<std::string>> axes() const;
  // Logical axis -> how it may be cut; axes that are not named may be cut anywhere.
  std::map<std::string, Grain> grains() const;

  // The peers' rule (bench/peers): 6 x weights of matrix products, the head included, the embedding
  // not, + 12 x layers x heads x head_dim x sequence. Attention is not halved for causality.
  double flops_per_token(std::int64_t sequence) const;

  const recipe::Model& config() const { return config_; }

  // What each layer computes again in backward; none of it changes a bit. Selective: norms and the
  // activation of the feed-forward layer (not the experts'), which cost little beside the products.
  void set_recompute(std::vector<recipe::Recompute> layers) { recompute_ = std::move(layers); }
  void set_recompute(bool full) {
    recompute_.assign(static_cast<std::size_t>(config_.layers),
                      full ? recipe::Recompute::full : recipe::Recompute::none);
  }
  recipe::Recompute recompute(std::size_t layer) const {
    return layer < recompute_.size() ? recompute_[layer] : recipe::Recompute::none;
  }
  void set_dropout_key(const DropoutKey& key) { dropout_key_ = key; }  // before each loss()
  const DropoutKey& dropout_key() const { return dropout_key_; }

 protected:
  recipe::Model config_;
  std::vector<recipe::Recompute> recompute_;
  DropoutKey dropout_key_;
};

// Every size of `config` must be set (resolve() does it). Weights are not initialised.
std::shared_ptr<LanguageModel> make_model(const recipe::Model& config);

// `config` with each 0 that stands for "follows from the others" filled in: kv_heads, head_dim,
// mlp; context from `sequence`; vocab must be above 0. Throws ConfigError with every contradiction.
recipe::Model resolve(recipe::Model config, std::int64_t sequence);

// Normal(0, init_std) for matrices and embeddings, GPT-2's residual projections / sqrt(2 layers);
// ones for norms, zeros for biases. Element i of parameter `name` is draw i of
// RandomStream(seed, name): the same for every layout. Fills in the parameters' own dtype.
void initialise(LanguageModel& model, std::uint64_t seed);

}  // namespace tutti::nn
