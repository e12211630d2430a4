// The parameters that one rank holds of one stage, spread over the data ranks: where they lie, how
// their gradients are collected and summed, who updates what. ZeRO's stages (Rajbhandari et al.,
// "ZeRO: memory optimizations toward training trillion parameter models", 2020) differ in nothing
// else:
//
//   zero  optimizer state  gradients               parameters
//   0     all              all                     all
//   1     own shard        all                     all
//   2     own shard        own shard; a bucket's   all
//                          whole while in flight
//   3     own shard        own shard               own shard; a unit's while it is used
//
// Hybrid sharding (Zhao et al., "PyTorch FSDP", 2023, section 3.2.2): `shard` ranks hold different
// shards, `replica` ranks the same. Data rank = shard * replicas + replica.
//
// Bits (promise 3): gradients are summed over micro-batch ids along comm/reduction_tree.h's tree,
// whoever computed them. Up to zero 1 a rank takes consecutive ids and sums them itself, as far as
// the tree has them in one node; from zero 2 on ids are dealt round robin, so that in each round
// consecutive ids come to the shard's owner, who adds them along the tree. `reproducible: off` adds
// as they come.
//
// Use: begin_step; per micro-batch begin, backward with this as the sink, end; then finish, norms,
// update. One thread.
#pragma once
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "collective/group.h"
#include "nn/grad_sink.h"
#include "optim/norm.h"
#include "optim/optimizer.h"
#include "parallel/mesh_spread.h"
#include "parallel/reducer.h"
#include "parallel/shards.h"

namespace tutti::parallel {

// The groups of the ranks that hold the same stage and differ in data; null: a group of one.
struct DataRanks {
  std::shared_ptr<collective::Group> data, shard, replica;

  static int size_of(const std::shared_ptr<collective::Group>& g) { return g ? g->size() : 1; }
  static int rank_of(const std::shared_ptr<collective::Group>& g) { return g ? g->rank() : 0; }
  int size() const { return size_of(data); }
  int rank() const { return rank_of(data); }
  int shards() const { return size_of(shard); }
  int replicas() const { return size_of(replica); }
};

class StageParameters : public nn::GradSink {
 public:
  struct Options {
    torch::ScalarType compute_type = torch::kFloat;  // what the module sees; the master is fp32
    bool reproducible = true, overlap = true;
    int zero = 0;
    std::int64_t bucket_bytes = 4 << 20;
    int micro_batches = 1;   // of a global batch
    std::uint64_t seed = 1;  // of the rounding of bf16 moments
    bool reshard_after_forward = true;
    bool prefetch = true;
    std::vector<std::string> units;  // zero 3: gathered and let go of by unit()
    std::vector<std::string> alone;  // parameters with a bucket of their own
    // Ranks that had other tokens of the same sequences, for no other use: all gradients are summed
    // over them, bucket by bucket while backward goes on (below zero 2, if reproducible).
    std::shared_ptr<collective::Group> tokens = {};
    // Then sums over other axes, of every tensor: the gradients of pieces [first, end), flat. Both
    // of each micro-batch's if reproducible, so that the data ranks' number does not matter.
    std::function<void(const std::vector<torch::Tensor>& flats, std::size_t first, std::size_t end,
                       const std::vector<Piece>& pieces)>
        reduce_first = {};
    // Of the sums over data ranks; below zero 2, if not reproducible. Not of parameters of `alone`.
    Compress compress = {};
  };
  struct Named {
    std::string name;
    torch::Tensor parameter;
    std::int64_t weight = 0;  // Piece::weight
    bool input_first = false;
    std::vector<optim::Run> runs = {};  // of what is cut: where it lies in the whole parameter
  };

  // Moves the parameters into buffers of its own. All data ranks must have equal values.
  StageParameters(Options options, const std::vector<Named>& parameters, DataRanks ranks,
                  const recipe::Optimizer& optimizer);
  ~StageParameters() override;
  StageParameters(const StageParameters&) = delete;
  StageParameters& operator=(const StageParameters&) = delete;

  // The micro-batches of a global batch that data rank `rank` computes, ascending.
  static std::vector<int> ids_of(int zero, int micro_batches, int ranks, int rank);

  // After `updates` of them; gradients come multiplied by `loss_scale`.
  void begin_step(std::int64_t updates, double loss_scale);
  void begin(int index);  // this rank's micro-batches, from 0
  void end();
  // After the last: returns when this rank's shard of the gradient is summed.
  void finish();
  void end_step();  // after the update; also when nothing is updated

  // Squares of the gradient elements that this data rank alone answers for, by optim::norm_block:
  // those of piece p into blocks[p][0, optim::norm_blocks(size)); null: not wanted.
  void write_squares(const std::vector<double*>& blocks) const;
  // The part of a parameter of `alone` that this data rank answers for, of the summed gradient. Who
  // writes into it between finish() and update() calls share_own_gradient() on all data ranks.
  torch::Tensor own_gradient(const std::string& alone);
  void share_own_gradient(const std::string& alone);
  // The first parameter of this rank's shard whose gradient is not finite, or "".
  std::string first_non_finite() const;

  void update(std::int64_t step, double lr, double scale);
  // After values of the state were written.
  void restored();

  // Zero 3, around each use of a unit: what the model's hooks say.
  using Use = MeshSpread::Use;
  void unit(int unit, Use use);
  // Joins the gathers of a pass that the others make and this rank does not.
  void idle_pass(bool with_backward);
  // All parameters whole, for what is no step, whose passes may differ from rank to rank; and back.
  void gather_all();
  void release_all();

  const std::vector<Piece>& pieces() const { return pieces_; }
  const DataRanks& ranks() const { return ranks_; }
  // Elements of a piece that this rank's shard holds, per tensor of the state.
  struct Held {
    std::string name;  // "model/<parameter>", "optimizer.exp_avg/<parameter>"
    std::size_t piece = 0;
    std::int64_t first = 0;  // of the piece's elements
    torch::Tensor values;    // flat, a view
  };
  std::vector<Held> state();
  // The same of the summed gradient, by the parameters' names; between finish() and begin_step().
  std::vector<Held> gradients() const;
  // What is sent later (parallel/reducer.h): "data.1/compress.error/<parameter>" of this data rank,
  // "compress.sum_error/<parameter>" of its part of the sum. Empty: nothing is compressed.
  // Parameters of `alone` have none.
  std::vector<Held> unsent() const;
  std::vector<Reducer::Factor> factors() const;

  // Bytes that live on this rank: parameters, gradients, optimizer state.
  struct Memory {
    std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  };
  Memory memory() const;

  Target target(const torch::Tensor& parameter) override;
  void ready(const torch::Tensor& parameter) override;

 private:
  struct Part {  // of a bucket: what a data rank alone or a shard's replicas hold
    std::int64_t begin = 0, size = 0;  // in the flat order
  };
  struct BucketState {
    Bucket bucket;
    int unit = -1;
    std::vector<std::int64_t> cuts;  // of the data ranks
    std::int64_t shard_offset = 0;   // of the own shard's part in shard buffers
    std::int64_t own_offset = 0;     // of the own part in `sums_`
    torch::Tensor compute;           // the parameters, flat; views of the module's
    torch::Tensor gradient;          // zero >= 2: while a micro-batch's is collected
    torch::Tensor incoming;          // zero >= 2: the own part of each rank
    std::size_t missing = 0;
    std::shared_ptr<collective::Work> work, gathering;
    bool whole = true;   // the parameters are there
    bool stays = true;   // and are never let go of
    bool alone = false;  // of Options::alone
  };

  void lay_out(const std::vector<Named>& parameters);
  void cut_buckets();
  void make_gradients();
  void make_optimizer(const recipe::Optimizer& recipe);
  void make_reducer();
  void install_hooks();

  Part part(const BucketState& b, int data_rank) const;
  Part shard_part(const BucketState& b, int shard) const;
  Part own_part(const BucketState& b) const { return part(b, ranks_.rank()); }
  Part own_shard(const BucketState& b) const {
    return shard_part(b, DataRanks::rank_of(ranks_.shard));
  }
  std::vector<std::int64_t> part_sizes(const BucketState& b) const;
  std::vector<std::int64_t> shard_sizes(const BucketState& b) const;
  torch::Tensor shard_view(const torch::Tensor& flat, const BucketState& b) const;
  torch::Tensor own_gradient(const BucketState& b) const;
  BucketState& bucket_of(const std::string& alone);
  void start_sharing(BucketState& b);
  static void wait_for(BucketState& b);  // its reduction or exchange, if one is under way

  torch::Tensor gradient_view(std::size_t piece);
  Target target_of(std::size_t piece);
  void written(std::size_t piece);
  void mark_ready(std::size_t piece);
  void take_autograd_gradient(std::size_t piece);
  void finish_pieces();
  void reduce_complete();
  void reduce_rest();
  void reduce(BucketState& b);
  void reduce_leaf(BucketState& b);
  void finish_leaves();
  void reduce_slots(BucketState& b);
  void start_compressed(BucketState& b);
  void finish_compressed(BucketState& b);
  bool compresses(const BucketState& b) const { return compressing_ && !b.alone; }
  void sum_first(const std::vector<torch::Tensor>& flats, const Bucket& bucket);
  void exchange(BucketState& b, bool has_gradient);
  void add_incoming(BucketState& b);
  void merge(std::vector<torch::Tensor>& slots, int slot, int merges, std::int64_t offset,
             std::int64_t size);
  int leaves_in_round() const;
  // Below zero 2: whether a micro-batch's gradient is summed over other axes on its own.
  bool reduces_leaves() const {
    return options_.zero <= 1 && options_.reproducible &&
           (options_.reduce_first || options_.tokens);
  }
  void drain();

  void publish();
  void start_gather(BucketState& b);
  void gather(BucketState& b);
  void release(BucketState& b);
  BucketState* bucket_of_unit(int unit);

  Options options_;
  DataRanks ranks_;
  std::vector<Piece> pieces_;
  std::vector<bool> input_first_;
  std::vector<std::vector<optim::Run>> runs_;
  std::int64_t total_ = 0;
  torch::ScalarType master_type_ = torch::kFloat;
  std::vector<BucketState> buckets_;  // backward order
  std::vector<std::size_t> bucket_of_;

  torch::Tensor master_;         // own shard
  torch::Tensor compute_shard_;  // zero 3: own shard as the module sees it
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<optim::Segment> segments_;  // one a piece; of the own shard

  comm::ReductionPlan plan_;             // zero <= 1
  std::vector<comm::Arrival> arrivals_;  // zero <= 1: of this rank's ids; else of all
  std::vector<torch::Tensor> slots_;     // zero <= 1: flat; else of the own parts
  torch::Tensor gradient_;               // own shard, summed
  std::unique_ptr<Reducer> reducer_;     // null: sums are plain
  bool compressing_ = false;             // in this step
  double loss_scale_ = 1;

  std::unordered_map<const c10::TensorImpl*, std::size_t> piece_of_;
  std::vector<decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()))> accumulators_;

  // Parameters of several uses, learnt in the first step: whole only at the end of backward.
  std::vector<bool> used_again_;
  bool uses_known_ = false;

  // Of the micro-batch in work.
  int index_ = 0, count_ = 0, slot_ = 0, merges_ = 0;
  bool last_ = false, collecting_ = false;
  bool all_stay_ = false;  // between gather_all and release_all
  std::vector<bool> is_written_, is_ready_;
  std::size_t next_bucket_ = 0;
};

}  // namespace tutti::parallel
