// What a model asks of whoever spreads it over ranks. Model code is written once, for one device:
// it names its parameters' logical axes (LanguageModel::axes) and computes with the typed
// operations of value.h; those ask here where a parameter lies and have values converted. Without
// a Spread everything is Replicate and nothing is asked twice.
//
// Types of a value on the tensor axis, after the SPMD types of parallel compilers (Xu et al.,
// "GSPMD", 2021; each has one meaning for the value and one for its gradient):
//
//   Replicate  the same value on all ranks; its gradient is whole and the same on all
//   Shard(d)   rank r holds slice r of dimension d, of value and gradient
//   Partial    the value is the sum over the ranks; its gradient is whole and the same on all
//   Varying    the value is whole, but each rank goes its own way with it: its gradient is the sum
//
// Conversions and their collectives (forward / backward):
//   Replicate -> Varying   none / all-reduce          Partial  -> Replicate  all-reduce / none
//   Shard(0)  -> Varying   all-gather / reduce-scatter  Partial  -> Shard(0)  reduce-scatter /
//   all-gather
//   Replicate -> Shard(0)  slice / all-gather         Shard(0) -> Replicate  all-gather / slice
// Everything else is a wrong composition: ConfigError with both types and the place.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/ops.h"
#include "nn/record.h"
#include "nn/row_exchange.h"

namespace tutti::nn {

struct Type {
  enum class Kind { replicate, shard, partial, varying };
  Kind kind = Kind::replicate;
  int dim = 0;  // of shard only
  bool operator==(const Type&) const = default;

  static Type replicate() { return {}; }
  static Type shard(int dim) { return {Kind::shard, dim}; }
  static Type partial() { return {Kind::partial, 0}; }
  static Type varying() { return {Kind::varying, 0}; }
};
std::string to_text(const Type& type);  // "Shard(0)"

// How a logical axis may be cut: runs of `unit` indices stay together (a key head's rows with all
// of its query heads'), and it is `parts` things side by side, each cut alike (GPT-2's query, key
// and value in one weight).
struct Grain {
  std::int64_t unit = 1;
  int parts = 1;
};

// Causal attention as nn::attention has it, of tokens that may be some of a sequence's.
struct AttentionCall {
  torch::Tensor qkv;  // consumed
  Heads heads;        // heads.sequence: tokens of a sequence here
  Rope rope;          // of the positions here
  // Of each query here: the first position that it sees. int32 [batch, tokens here] or undefined.
  torch::Tensor first_key;
  // Multiplies the probabilities, if defined: [batch, heads, tokens here, sequence].
  torch::Tensor keep;
  std::int64_t sequence = 0;  // whole
};

class Spread {
 public:
  virtual ~Spread() = default;

  // --- the tensor axis
  // How a registered parameter is cut. Shard(d): this rank's is `part` of the global dimension d.
  virtual Type placement(const torch::Tensor& /*parameter*/) const { return {}; }
  virtual Span part(const torch::Tensor& parameter) const { return {0, parameter.size(0)}; }
  // The type in which the residual stream [tokens, embed] goes from block to block: Replicate, or
  // Shard(0) with sequence parallelism.
  virtual Type stream() const { return {}; }
  // This rank's rows of `rows` in Shard(0).
  virtual Span rows(std::int64_t rows) const { return {0, rows}; }
  // How many rows of a stream of `rows` this rank holds.
  std::int64_t stream_rows(std::int64_t rows) const {
    return stream() == Type::shard(0) ? this->rows(rows).size : rows;
  }
  // `rows`: the size of dimension 0 when whole. The operation with parameter `at` asks for it: that
  // names the place in errors and traces.
  virtual torch::Tensor convert(const torch::Tensor& x, Type from, Type to, std::int64_t rows,
                                const torch::Tensor& at);
  // The same for one product with parameter `at`, whose gathered operand (`to` is Varying) or whose
  // result (`from` is Partial) has `features` columns: its rows are converted in runs.
  virtual std::shared_ptr<RowExchange> exchange(Type from, Type to, std::int64_t rows,
                                                std::int64_t features, const torch::Tensor& at);
  // This rank's gradient of `parameter` is an addend over the tensor axis.
  virtual void sum_gradient(const torch::Tensor& /*parameter*/) {}
  // Of no gradient.
  virtual torch::Tensor max(const torch::Tensor& x) { return x; }
  virtual torch::Tensor sum(const torch::Tensor& x) { return x; }

  // --- the context axis: the tokens of a sequence are cut over ranks, everywhere alike
  // The positions (int64, ascending or not) of a sequence that this rank holds; undefined: all.
  virtual torch::Tensor positions(std::int64_t /*sequence*/) const { return {}; }
  // Attention of this rank's queries with all ranks' keys.
  virtual torch::Tensor attention(const AttentionCall& call);

  // --- units: what is gathered, used and let go of together (ZeRO-3). `name` is the prefix of the
  // parameters' names. Tensors may be undefined; both return what the model goes on with.
  virtual Tensors before_unit(const std::string& /*name*/, Tensors x) { return x; }
  virtual Tensors after_unit(const std::string& /*name*/, Tensors x) { return x; }
};

// The calling thread's; one that changes nothing if none was set. Never null.
Spread& spread();

// Sets the calling thread's for its lifetime.
class SpreadScope {
 public:
  explicit SpreadScope(Spread* spread);
  ~SpreadScope();
  SpreadScope(const SpreadScope&) = delete;
  SpreadScope& operator=(const SpreadScope&) = delete;

 private:
  Spread* outer_;
};

}  // namespace tutti::nn
