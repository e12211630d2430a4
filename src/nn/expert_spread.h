// What a mixture of experts asks of whoever spreads experts over ranks. Apart from Spread
// (spread.h), since the experts' grid need not be the attention's: ranks that hold different tokens
// send each other rows. Without one, all experts are here.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "nn/spread.h"

namespace tutti::nn {

class ExpertSpread {
 public:
  // Rows of the experts of this rank, and what bring_back needs to undo the exchange.
  struct Sent {
    torch::Tensor rows;                // sorted by expert
    std::vector<std::int64_t> counts;  // of each expert here
    std::shared_ptr<const void> way;
  };
  virtual ~ExpertSpread() = default;

  // Whether experts lie on several ranks. If so, every rank that holds tokens of the stream's
  // Shard(0) calls send and bring_back, once a layer and pass, with rows or without.
  virtual bool spreads() const { return false; }
  // `rows` are sorted by expert over all experts, counts[e] of expert e. Both are differentiable:
  // a row's gradient goes the other way.
  virtual Sent send(const torch::Tensor& rows, const std::vector<std::int64_t>& counts) {
    return {rows, counts, nullptr};
  }
  virtual torch::Tensor bring_back(const torch::Tensor& rows, const Sent& /*sent*/) { return rows; }

  // earlier_slots (moe.h) of `ids` among those of all such ranks: `rows` and the ranks as below.
  // Undefined: there are no others.
  virtual torch::Tensor earlier(const torch::Tensor& /*ids*/, const torch::Tensor& /*places*/,
                                std::int64_t /*experts*/, const Type& /*rows*/) {
    return {};
  }

  // Sums over all ranks that hold other tokens of the same micro-batch: over the context axis, and
  // over the tensor axis too if `rows` is Shard(0). Of no gradient; int64, exact.
  virtual torch::Tensor sum_over_tokens(const torch::Tensor& x, const Type& /*rows*/) { return x; }
};

// The calling thread's; one that changes nothing if none was set. Never null.
ExpertSpread& expert_spread();

// Sets the calling thread's for its lifetime.
class ExpertSpreadScope {
 public:
  explicit ExpertSpreadScope(ExpertSpread* spread);
  ~ExpertSpreadScope();
  ExpertSpreadScope(const ExpertSpreadScope&) = delete;
  ExpertSpreadScope& operator=(const ExpertSpreadScope&) = delete;

 private:
  ExpertSpread* outer_;
};

}  // namespace tutti::nn
