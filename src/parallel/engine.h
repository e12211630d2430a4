// How a model is spread is an engine; what is trained is a task; neither knows the other's insides.
//
// One loss rule (promise 1): a task's loss is a numerator (a sum over targets) and a denominator
// (their count). Both are summed over all micro-batches of the global batch, wherever they were
// computed, and divided once, in Engine::step. A task never averages and never scales.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/box.h"

namespace tutti::parallel {

// The tensors of one micro-batch, first dimension the samples; their meaning is the task's.
using Batch = std::vector<torch::Tensor>;

struct Loss {
  torch::Tensor sum;  // scalar: the loss summed over targets, differentiable
  double count = 0;   // targets, >= 0
};

// A model with its loss: written for one device, called with whole micro-batches.
class Task {
 public:
  virtual ~Task() = default;
  virtual torch::nn::Module& module() = 0;
  virtual Loss loss(const Batch& batch) = 0;
  // What one sample costs, forward and backward, for MFU; 0 if not known.
  virtual double flops_per_sample() const { return 0; }
  // What a checkpoint should say of the model, so that it can be built again: JSON.
  virtual std::string description() const { return "{}"; }
  // Whether this weight is [inputs, outputs], as GPT-2's are; torch::nn::Linear's are the other
  // way. Muon's step size depends on it.
  virtual bool input_first(const std::string& /*parameter*/) const { return false; }
  // Called before each micro-batch with the optimizer step and the micro-batch's id in it, so that
  // dropout draws by name and position (promise 4).
  virtual void at(std::int64_t /*step*/, std::int64_t /*micro_batch*/) {}
  // Whether the module's buffers change in counted() alone, so that ranks need not be told of them.
  // Else those that training changes (running statistics) are rank 0's after every step.
  virtual bool exact_buffers() const { return false; }
  // What passes counted besides their loss (how often each expert was chosen) since the last call:
  // int64 of one shape on all ranks, alike on ranks that share a micro-batch; undefined: nothing.
  // Called before a step, to forget one that failed, and after its passes; the sum over all
  // micro-batches and stages is given to counted() when the step is applied.
  virtual torch::Tensor take_counts() { return {}; }
  virtual void counted(const torch::Tensor& /*sum*/) {}
};

// Micro-batch `id` of the batch that is being worked on; called on the engine's thread.
using BatchSource = std::function<Batch(std::int64_t id)>;

// One optimizer step as this rank saw it. Losses, counts and norms are those of the global batch
// and the same bits on all ranks; times are this rank's, in seconds.
struct StepOutcome {
  double loss = 0;        // mean over the global batch's targets, before this update
  double count = 0;       // targets in the global batch
  double grad_norm = 0;   // before clipping
  bool applied = true;    // false: a non-finite gradient; weights and optimizer are as before
  std::string culprit;    // the first parameter whose gradient is not finite, or "loss"
  double loss_scale = 1;  // fp16 only
  bool stop = false;      // a rank asked to stop: all agree
  double elapsed = 0;     // seconds of training that rank 0 counts: the same on all ranks
  double data_seconds = 0, forward_seconds = 0, backward_seconds = 0, wait_seconds = 0,
         optimizer_seconds = 0;
  double exposed_seconds = 0;  // waited for operations of any group, anywhere in the step
};

// A tensor of the run's state, or a piece of one, by its global name, as bytes that lie in the
// engine.
struct StateTensor {
  std::string name;     // "model/<parameter>", "optimizer.exp_avg/<parameter>", ...
  torch::Tensor value;  // contiguous; writing into it restores the state
  std::vector<std::int64_t> shape = {};  // global; of a piece only
  std::optional<Box> box = {};           // which piece; none: the whole, the same on every rank
  bool owned =
      true;  // of a piece: whether this is the rank that writes it, among those that have it

  std::vector<std::int64_t> global_shape() const { return box ? shape : value.sizes().vec(); }
  Box place() const { return box ? *box : whole(global_shape()); }
};

struct StepInput {
  std::int64_t step = 0;  // counted from 0
  double lr = 0;
  bool stop = false;   // this rank was asked to stop
  double elapsed = 0;  // seconds of training, rank 0's counts
  BatchSource batches;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Forward, backward, reduction, clipping, update. All ranks call it together. Throws WorldError
  // if a peer is lost or late. Nothing was updated then if that was before the update; what an
  // update sends (gathered weights, Muon's directions) may be lost half way: load a checkpoint.
  virtual StepOutcome step(const StepInput& input) = 0;

  virtual std::int64_t parameter_count() const = 0;

  // Mean loss over micro-batches [0, count), shared among the ranks, without gradients.
  virtual double evaluate(std::int64_t count, const BatchSource& batches) = 0;

  // Rank 0's value, on every rank: for what only one rank can decide.
  virtual std::int64_t agree(std::int64_t value) = 0;

  // What this rank holds of the last step's gradient: of the loss summed over all targets, neither
  // divided nor clipped. Its names are the parameters'; valid until the next step. Empty: the
  // engine does not tell.
  virtual std::vector<StateTensor> gradients() { return {}; }

  // What this rank holds. Call restored() after writing into the values.
  virtual std::vector<StateTensor> state() = 0;
  virtual void restored() = 0;

  // What this rank's passes compute with beside state(): gathered or rounded weights,
  // "compute/<parameter>". For the watch over what ranks hold alike (train/divergence.h).
  virtual std::vector<StateTensor> copies() { return {}; }

  // Numbers that belong to the state beside tensors (loss scale, ...), as JSON text.
  virtual std::string scalars() const = 0;
  virtual void set_scalars(const std::string& json) = 0;
};

}  // namespace tutti::parallel
