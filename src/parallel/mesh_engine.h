// Any mix of data, ZeRO, tensor, sequence, context and pipeline parallelism, as a plan::Layout says
// it: what `engine: replicated`, `sharded` and `mesh` are.
//
//   Pipeline         which stage runs which micro-batch when (one stage: all of the model)
//   MeshSpread       what the model's typed values mean on the tensor and context axes
//   StageParameters  who holds which part of a stage's weights, gradients and optimizer state
//
// Bits (promise 3): those of one rank for every number of data ranks, ZeRO stage,
// bucket size, overlap, pipeline degree and schedule. Tensor and context ranks change the shapes of
// matrix products, a tied weight at both ends of a pipeline the order of two sums: parity, not
// bits.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "optim/loss_scaler.h"
#include "parallel/engine.h"
#include "parallel/local_state.h"
#include "parallel/mesh_experts.h"
#include "parallel/mesh_groups.h"
#include "parallel/mesh_spread.h"
#include "parallel/pipeline.h"
#include "parallel/stage_parameters.h"
#include "plan/layout.h"

namespace tutti::parallel {

class MeshEngine : public Engine, private StageGradients {
 public:
  // Rank 0's parameters are given to all, then cut; what a rank does not need is let go of. A task
  // that is no StagedTask can be spread over data ranks only: ConfigError.
  MeshEngine(const recipe::Recipe& recipe, Task& task, const plan::Layout& layout,
             std::shared_ptr<collective::Group> world);
  ~MeshEngine() override;

  StepOutcome step(const StepInput& input) override;
  double evaluate(std::int64_t count, const BatchSource& batches) override;
  std::int64_t agree(std::int64_t value) override;
  std::vector<StateTensor> gradients() override;
  std::vector<StateTensor> state() override;
  std::vector<StateTensor> copies() override;
  void restored() override;
  std::string scalars() const override;
  void set_scalars(const std::string& json) override;
  std::int64_t parameter_count() const override;

  StageParameters::Memory memory() const;
  MeshSpread& spread() { return spread_; }
  MeshExperts& experts() { return experts_; }
  const std::vector<Cut>& cuts() const { return cuts_; }  // of this rank, in the model's order
  // The most activations of stages that were held at once in the last step.
  int peak_activations() const { return peak_activations_; }

 private:
  // A stage's parameters, or those of its experts that are dealt over ranks: other ranks hold the
  // same.
  struct OwnStage {
    int stage = 0;
    bool experts = false;
    std::vector<std::size_t> cuts;  // of each of its parameters, in order: index in cuts_
    std::vector<std::string> units;
    std::unique_ptr<StageParameters> parameters;
  };
  // Asks the stage's parameters in turn.
  struct Sink : nn::GradSink {
    std::vector<StageParameters*> parts;
    Target target(const torch::Tensor& parameter) override;
    void ready(const torch::Tensor& parameter) override;
  };

  void broadcast_all();
  void cut_all();
  void make_stages();
  void find_shared();
  void learn_others();
  void add_own(int index, const nn::Stage& stage, bool experts);
  std::unique_ptr<StageParameters> make_parameters(const OwnStage& own);
  void use_unit(const std::string& unit, MeshSpread::Use use);
  std::vector<nn::Stage> stages() const;
  Pipeline& pipeline_for(int micro_batches);

  void begin(int stage, int micro_batch) override;
  nn::GradSink& sink(int stage) override;
  void end(int stage, int micro_batch) override;
  void reduce_first(const std::vector<torch::Tensor>& flats, std::size_t first, std::size_t end,
                    const std::vector<Piece>& pieces);

  void run_micro_batches(const StepInput& input, StepOutcome& outcome);
  void sum_shared();
  void refuse_unasked();
  // Loss sum and count over all micro-batches, in the tree's order, the ranks' votes, the norm.
  void share_table(const StepInput& input, StepOutcome& outcome);
  // Of what ranks that differ in more than data hold alike, whether this one is the one that counts
  // and writes it.
  bool answers_for(const Cut& cut) const;
  double squared_norm() const;
  void write_squares();
  std::string first_culprit();
  void update(const StepInput& input, StepOutcome& outcome);
  void add_pieces(LocalState& to, const OwnStage& own,
                  const std::vector<StageParameters::Held>& pieces) const;
  void add_unsent(const OwnStage& own);

  const recipe::Recipe recipe_;
  std::unique_ptr<StagedTask> adaptor_;
  StagedTask& task_;
  const plan::Layout layout_;
  MeshGroups groups_;
  MeshExperts experts_;
  MeshSpread spread_;
  torch::ScalarType type_ = torch::kFloat;  // of weights and activations as the passes see them

  std::vector<Cut> cuts_;  // of every parameter that is trained, in the model's order
  std::vector<torch::Tensor> parameters_;
  std::vector<StateTensor> fixed_, moving_;  // frozen parameters; buffers
  std::vector<OwnStage> own_;
  std::map<int, Sink> sinks_;  // by stage
  // Parameters of two stages (a tied embedding): name -> the ranks that hold it.
  std::map<std::string, std::shared_ptr<collective::Group>> shared_;
  std::map<int, Pipeline> pipelines_;  // by their number of micro-batches
  LocalState state_;
  std::vector<StateTensor> elsewhere_;  // empty pieces of what only other ranks hold

  int micro_batches_ = 1;
  std::vector<int> ids_;  // of this rank
  CutRanks cut_ranks_, cut_place_;
  // [parameter][part], where its norm's blocks begin in table_, and their end.
  std::vector<std::vector<std::int64_t>> blocks_;
  torch::Tensor table_;  // fp64: loss sums, counts, votes, squares by blocks
  optim::LossScaler scaler_;
  std::int64_t updates_ = 0;
  bool first_step_ = true;
  int peak_activations_ = 0;
};

}  // namespace tutti::parallel
