// nn's Spread over groups of ranks: the collectives that typed values ask for. One a rank; used
// from the thread that runs forward and backward passes.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "collective/group.h"
#include "nn/spread.h"
#include "parallel/context.h"
#include "parallel/cut.h"

namespace tutti::parallel {

// One conversion as a pass asked for it: what `tutti layout show` prints.
struct Boundary {
  std::string at;  // the parameter whose operation asked
  std::string axis;
  nn::Type from, to;  // on the tensor axis; of "expert", rows that travel, the same
  const char* forward = "none";
  const char* backward = "none";  // the collectives
  std::int64_t bytes = 0;         // of the whole tensor
};

class MeshSpread : public nn::Spread {
 public:
  // `tensor` of null or one rank, `context` of null: the axis is not there. `chunks`: runs of rows
  // in which a product is computed while others are on their way (tensor_exchange.h); 1: whole.
  MeshSpread(std::shared_ptr<collective::Group> tensor, bool sequence_parallel,
             std::unique_ptr<ContextAttention> context, int chunks = 1);

  // How the registered parameter is cut; it must live as long as this.
  void set_cut(const torch::Tensor& parameter, Cut cut);
  const Cut& cut_of(const torch::Tensor& parameter) const;

  int tensor_ranks() const { return tensor_ ? tensor_->size() : 1; }
  int context_ranks() const { return context_ ? context_->grid().size() : 1; }
  // Whether an operation of the passes so far asked how this parameter is cut: one that takes it
  // without asking takes a slice for the whole.
  bool asked_for(const torch::Tensor& parameter) const;
  // And whether one asked which tokens are here.
  bool asked_for_positions() const { return asked_for_positions_; }
  // The registered parameters whose gradients the passes so far said to be addends over the axis.
  bool sums_gradient(const torch::Tensor& parameter) const;

  // Told around each use of a unit of parameters, forward and backward.
  enum class Use { forward_begin, forward_end, backward_begin, backward_end };
  using UnitHook = std::function<void(const std::string& unit, Use use)>;
  void on_unit(UnitHook hook) { unit_hook_ = std::move(hook); }

  // Keeps the conversions of passes from now on.
  void trace(bool on) { tracing_ = on; }
  bool traces() const { return tracing_; }
  void note(Boundary boundary) { boundaries_.push_back(std::move(boundary)); }
  std::vector<Boundary> take_trace() { return std::exchange(boundaries_, {}); }

  nn::Type placement(const torch::Tensor& parameter) const override;
  nn::Span part(const torch::Tensor& parameter) const override;
  nn::Type stream() const override;
  nn::Span rows(std::int64_t rows) const override;
  torch::Tensor convert(const torch::Tensor& x, nn::Type from, nn::Type to, std::int64_t rows,
                        const torch::Tensor& at) override;
  std::shared_ptr<nn::RowExchange> exchange(nn::Type from, nn::Type to, std::int64_t rows,
                                            std::int64_t features,
                                            const torch::Tensor& at) override;
  void sum_gradient(const torch::Tensor& parameter) override;
  torch::Tensor max(const torch::Tensor& x) override;
  torch::Tensor sum(const torch::Tensor& x) override;
  torch::Tensor positions(std::int64_t sequence) const override;
  torch::Tensor attention(const nn::AttentionCall& call) override;
  nn::Tensors before_unit(const std::string& name, nn::Tensors x) override;
  nn::Tensors after_unit(const std::string& name, nn::Tensors x) override;

 private:
  std::string name_of(const torch::Tensor& parameter) const;
  bool loses_sums(const nn::Type& from) const;  // a seeded bug
  [[noreturn]] void refuse(nn::Type from, nn::Type to, const torch::Tensor& at) const;
  torch::Tensor all_reduced(const torch::Tensor& x) const;
  torch::Tensor gathered(const torch::Tensor& x, std::int64_t rows) const;
  torch::Tensor scattered(const torch::Tensor& x) const;
  torch::Tensor sliced(const torch::Tensor& x) const;

  std::shared_ptr<collective::Group> tensor_;
  bool sequence_parallel_;
  int chunks_;
  std::unique_ptr<ContextAttention> context_;
  struct Known {
    Cut cut;
    mutable bool asked = false;  // for its cut, by an operation
  };
  const Known* find(const torch::Tensor& parameter) const;  // null: it was never registered
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::unordered_set<const c10::TensorImpl*> summed_;
  mutable bool asked_for_positions_ = false;
  UnitHook unit_hook_;
  bool tracing_ = false;
  std::vector<Boundary> boundaries_;
};

}  // namespace tutti::parallel
