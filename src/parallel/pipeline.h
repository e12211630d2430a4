// Runs a pipeline's schedule (plan/pipeline_schedule.h) on this rank: forward and backward passes
// of its stages in the schedule's order, activations and their gradients between ranks.
//
// Sends do not wait; a receive waits for the message that it needs. What a peer sends, and in which
// order, is read off the same schedule, so that messages carry no labels. A schedule that
// simulate() accepts therefore ends.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collective/group.h"
#include "nn/deferred.h"
#include "parallel/staged_task.h"
#include "plan/pipeline_schedule.h"

namespace tutti::parallel {

// Where a stage's weight gradients go. Micro-batches come in ascending order, each between begin
// and end.
class StageGradients {
 public:
  virtual ~StageGradients() = default;
  virtual void begin(int stage, int micro_batch) = 0;
  virtual nn::GradSink& sink(int stage) = 0;
  virtual void end(int stage, int micro_batch) = 0;
};

class Pipeline {
 public:
  // `stages` has one entry a stage of the schedule. `group` holds the pipeline's ranks (null: one).
  Pipeline(plan::PipelineSchedule schedule, std::vector<nn::Stage> stages, StagedTask& task,
           std::shared_ptr<collective::Group> group);

  struct Step {
    std::function<Batch(int micro_batch)> batch;             // called once a micro-batch
    std::function<void(int micro_batch)> before_forward;     // seeds
    std::function<void(int micro_batch, const Loss&)> loss;  // of each stage that has one
    double loss_scale = 1;
    torch::ScalarType type = torch::kFloat;  // of activations
  };
  void run(const Step& step, StageGradients& gradients);
  // Forward only, one micro-batch after another, `count` of them.
  void evaluate(const Step& step, int count);

  const plan::PipelineSchedule& schedule() const { return schedule_; }
  bool has(int stage) const;
  // The most stage activations that were held at once in the last run().
  int peak_activations() const { return peak_; }
  // Writes passes, waits and data down as spans, from now on.
  void record(std::shared_ptr<comm::FlightRecorder> recorder) { recorder_ = std::move(recorder); }

  // Seconds of the last run(): `wait` for messages of other ranks.
  struct Times {
    double data = 0, forward = 0, backward = 0, wait = 0;
  };
  const Times& times() const { return times_; }

 private:
  struct Held {  // of a stage and micro-batch, from forward to the end of backward
    torch::Tensor in, out, loss;
    nn::WeightWork later;
  };
  using Key = std::pair<int, int>;  // stage, micro-batch
  struct Message {
    Key key;
    bool gradient = false;  // of stage key.first's input; else its input
  };

  int rank_of(int stage) const;
  std::deque<Message> messages_from(int peer) const;
  void begin(const Step& step);
  // Stage `stage`'s input, or the gradient of it, to the rank of `to_stage`.
  void send(const torch::Tensor& x, int stage, int micro_batch, bool gradient, int to_stage);
  torch::Tensor receive(int stage, int micro_batch, bool gradient, int from_stage);
  const Batch& batch(int micro_batch);
  void forward(int stage, int micro_batch);
  void backward(int stage, int micro_batch, bool with_weights, StageGradients& gradients);
  void weights(int stage, int micro_batch, StageGradients& gradients);
  void finish_sends();

  plan::PipelineSchedule schedule_;
  std::vector<nn::Stage> stages_;
  StagedTask& task_;
  std::shared_ptr<collective::Group> group_;
  int rank_ = 0;

  // Of the step in work.
  const Step* step_ = nullptr;
  std::map<int, Batch> batches_;
  std::map<Key, Held> held_;
  std::map<Key, torch::Tensor> inputs_, gradients_;  // come, not yet used
  std::map<int, std::deque<Message>> expected_;      // from each peer
  std::vector<std::pair<std::shared_ptr<collective::Work>, torch::Tensor>> sends_;
  int peak_ = 0;
  Times times_;
  std::shared_ptr<comm::FlightRecorder> recorder_;
};

}  // namespace tutti::parallel
