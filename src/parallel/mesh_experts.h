// nn's ExpertSpread over groups of ranks: a token's rows travel to the ranks that hold its experts
// and come home (Lepikhin et al., "GShard", 2020, section 3; Rajbhandari et al., "DeepSpeed-MoE",
// 2022, section 5.2). One a rank; used from the thread that runs forward and backward passes.
//
//   expert          holds different experts: runs of them, in order, by slice_of; the last ranks
//                   may have fewer, or none. Rows: all-to-all there, all-to-all home.
//   expert_tensor   holds slices of the same experts: gate and up [experts, mlp / n, embed], down
//                   [experts, embed, mlp / n]. Rows: all-gather there, reduce-scatter home.
//
// The ranks of both groups together have different tokens, whatever makes them differ: data ranks
// (other micro-batches), context ranks, tensor ranks in Shard(0). A backward pass takes the same
// ways in reverse. An expert's gradient is then the sum over all tokens of these ranks; to be
// summed over other ranks that hold the same part of the same experts, and over no others.
#pragma once
#include <memory>
#include <vector>

#include "collective/group.h"
#include "nn/expert_spread.h"
#include "parallel/mesh_spread.h"

namespace tutti::parallel {

struct ExpertGroups {
  std::shared_ptr<collective::Group> expert, expert_tensor;  // of null or one rank: not there
  // Ranks with other tokens of the same micro-batch; `tensor` only where they are in Shard(0).
  std::shared_ptr<collective::Group> context, tensor;
};

class MeshExperts : public nn::ExpertSpread {
 public:
  // `experts` of a layer, on all ranks.
  MeshExperts(std::int64_t experts, const ExpertGroups& groups);

  // Where it notes its exchanges, with the bytes of this rank's rows; must live as long as this.
  void trace(MeshSpread& to) { trace_ = &to; }

  nn::Span experts_here() const { return spans_[static_cast<std::size_t>(expert_rank())]; }

  bool spreads() const override { return groups_.expert || groups_.expert_tensor; }
  Sent send(const torch::Tensor& rows, const std::vector<std::int64_t>& counts) override;
  torch::Tensor bring_back(const torch::Tensor& rows, const Sent& sent) override;
  torch::Tensor earlier(const torch::Tensor& ids, const torch::Tensor& places, std::int64_t experts,
                        const nn::Type& rows) override;
  torch::Tensor sum_over_tokens(const torch::Tensor& x, const nn::Type& rows) override;

 private:
  struct Way;

  int expert_rank() const { return groups_.expert ? groups_.expert->rank() : 0; }
  std::vector<std::shared_ptr<collective::Group>> peers(const nn::Type& rows) const;
  // int64 [ranks that send here, experts here], of `counts` as they have them.
  torch::Tensor counts_for_here(const std::vector<std::int64_t>& counts) const;
  torch::Tensor there(const torch::Tensor& rows, const Way& way) const;
  torch::Tensor home(const torch::Tensor& rows, const Way& way) const;

  void note(const char* at, const torch::Tensor& rows, bool away) const;

  ExpertGroups groups_;
  MeshSpread* trace_ = nullptr;
  std::vector<nn::Span> spans_;  // of each rank of groups_.expert
};

}  // namespace tutti::parallel
