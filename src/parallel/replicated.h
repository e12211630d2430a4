// Data parallelism: every rank holds the whole model and computes some micro-batches of each global
// batch; gradients are summed over all micro-batches along one fixed tree (comm/reduction_tree.h),
// bucket by bucket while backward still runs, and every rank makes the same update.
//
// Same bits for any number of ranks, bucket size, overlap and transport, as long as micro-batches
// and threads a rank are the same. `reproducible: off` adds local micro-batches in place instead,
// which needs one gradient buffer however many there are.
#pragma once
#include <memory>
#include <unordered_map>

#include "collective/group.h"
#include "nn/grad_sink.h"
#include "optim/loss_scaler.h"
#include "optim/norm.h"
#include "optim/optimizer.h"
#include "parallel/engine.h"
#include "parallel/flat.h"
#include "recipe/recipe.h"

namespace tutti::parallel {

class ReplicatedEngine : public Engine, private nn::GradSink {
 public:
  // Moves the task's parameters into flat buffers; rank 0's values are given to all, frozen
  // parameters and buffers too. Buffers that training changes (running statistics) are rank 0's
  // after every step: like DDP's, they depend on the number of ranks.
  ReplicatedEngine(const recipe::Recipe& recipe, Task& task,
                   std::shared_ptr<collective::Group> group);
  ~ReplicatedEngine() override;

  StepOutcome step(const StepInput& input) override;
  double evaluate(std::int64_t count, const BatchSource& batches) override;
  std::int64_t agree(std::int64_t value) override;
  std::vector<StateTensor> gradients() override;
  std::vector<StateTensor> state() override;
  std::vector<StateTensor> copies() override {
    std::vector<StateTensor> all;
    for (const Piece& piece : flat_.pieces())
      if (flat_.mixed()) all.push_back({"compute/" + piece.name, piece.parameter.detach()});
    return all;
  }
  void restored() override { flat_.refresh_compute(); }
  std::string scalars() const override;
  void set_scalars(const std::string& json) override;
  comm::Range local_range() const { return plan_.ranges[static_cast<std::size_t>(group_->rank())]; }
  std::int64_t parameter_count() const override;

 private:
  struct BucketState {
    Bucket bucket;
    std::size_t missing = 0;  // pieces whose gradient is not there yet
    std::shared_ptr<collective::Work> work;
  };

  Target target(const torch::Tensor& parameter) override;
  void ready(const torch::Tensor& parameter) override;

  void install_hooks();
  void run_micro_batch(std::int64_t id, std::size_t index, const StepInput& input,
                       StepOutcome& outcome);
  void take_autograd_gradient(std::size_t piece);
  Target target_of(std::size_t piece);
  void written(std::size_t piece);
  void mark_ready(std::size_t piece);
  void finish_pieces();
  void reduce_complete();
  void reduce(BucketState& state);
  void merge(int slot, int merges, std::int64_t offset, std::int64_t size);
  // Loss sum and count over all micro-batches, in the tree's order, and the ranks' votes.
  void share_losses(const StepInput& input, StepOutcome& outcome);
  void update(const StepInput& input, StepOutcome& outcome);
  void drain();

  const recipe::Recipe recipe_;
  Task& task_;
  std::shared_ptr<collective::Group> group_;
  comm::ReductionPlan plan_;       // micro-batches over ranks
  comm::ReductionPlan reduction_;  // how gradients are summed
  std::vector<comm::Arrival> arrivals_;
  FlatParameters flat_;
  std::vector<StateTensor> fixed_;   // frozen parameters
  std::vector<StateTensor> moving_;  // buffers
  std::vector<optim::Segment> segments_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScaler scaler_;
  std::int64_t updates_ = 0;  // applied, for the optimizer's bias correction

  std::vector<torch::Tensor> slots_;  // flat gradients: partial sums, a stack
  std::vector<BucketState> buckets_;
  std::vector<std::size_t> bucket_of_;  // piece -> bucket
  std::unordered_map<const c10::TensorImpl*, std::size_t> piece_of_;
  std::vector<decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()))>
      accumulators_;  // keep the hooks alive

  // Parameters of several uses, learnt in the first step: whole only at the end of backward.
  std::vector<bool> used_again_;
  bool uses_known_ = false;

  // Of the micro-batch in work.
  int slot_ = 0, merges_ = 0;
  bool accumulate_ = false, last_ = false, in_backward_ = false;
  std::vector<bool> is_written_, is_ready_;  // by a use of it; by all of them
  std::size_t next_bucket_ = 0;              // the next to reduce

  torch::Tensor losses_;  // fp64 [2 * micro-batches + votes]
};

}  // namespace tutti::parallel
