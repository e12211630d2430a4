// Attention over a sequence that is cut over ranks. The ranks of the context axis form a grid:
// `ring` x `ulysses`, the latter fastest.
//
//   ulysses  all-to-all from tokens to heads: each rank then has some heads of all the tokens of
//            its ulysses group (Jacobs et al., "DeepSpeed Ulysses", 2023)
//   ring     keys and values go round; partial results are merged by their log-sum-exp, in fp32
//            (Liu et al., "Ring attention with blockwise transformers", 2023)
//   gather   in place of the ring: all keys and values are gathered (Dubey et al., "The Llama 3
//            herd of models", 2024, section 3.3.2)
//
// Along the ring, rank i of n holds chunks i and 2n - 1 - i of 2n, so that causal work is equal;
// within it a ulysses group's ranks hold consecutive slices of those. Sizes may be uneven.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <memory>

#include "collective/group.h"
#include "nn/spread.h"

namespace tutti::parallel {

struct ContextGrid {
  int ring = 1, ulysses = 1;
  int size() const { return ring * ulysses; }
};

// The positions (int64, ascending) of a sequence that rank `index` of the grid holds.
torch::Tensor context_positions(std::int64_t sequence, const ContextGrid& grid, int index);

class ContextAttention {
 public:
  using Call = nn::AttentionCall;

  // `ring` and `ulysses` hold the ranks that differ in that coordinate alone; of one rank: null.
  ContextAttention(std::shared_ptr<collective::Group> ring,
                   std::shared_ptr<collective::Group> ulysses, bool gather);

  const ContextGrid& grid() const { return grid_; }
  int index() const { return index_; }
  torch::Tensor positions(std::int64_t sequence) const {
    return context_positions(sequence, grid_, index_);
  }
  // -> [tokens here, heads * dim]. Dropout of the probabilities (`keep`) needs whole rows of them:
  // then keys and values are gathered, whatever the kind.
  torch::Tensor run(const Call& call) const;

 private:
  torch::Tensor ring_positions(std::int64_t sequence, int ring_index) const;
  // exchanged(), differentiable.
  torch::Tensor moved(const torch::Tensor& x, std::int64_t sequence, bool to_heads) const;
  torch::Tensor exchanged(const torch::Tensor& x, std::int64_t sequence, bool to_heads) const;
  torch::Tensor around_ring(const torch::Tensor& query, const torch::Tensor& key,
                            const torch::Tensor& value, const torch::Tensor& first_key,
                            std::int64_t sequence) const;
  torch::Tensor all_keys(const torch::Tensor& x, std::int64_t sequence) const;
  torch::Tensor with_all_keys(const torch::Tensor& query, const torch::Tensor& key,
                              const torch::Tensor& value, const Call& call,
                              const torch::Tensor& first_key) const;

  std::shared_ptr<collective::Group> ring_, ulysses_;
  bool gather_;
  ContextGrid grid_;
  int index_;
};

}  // namespace tutti::parallel
