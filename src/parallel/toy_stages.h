// Stages without a model, for tests and benchmarks of how a pipeline runs: each pass does what it
// is told to (wait, sleep, write down that it ran), and what goes between stages says which stage
// and micro-batch it belongs to, so that a message that took a wrong turn is found.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "nn/record.h"
#include "parallel/pipeline.h"

namespace tutti::parallel {

class ToyStages : public StagedTask {
 public:
  // Called for every pass on the rank's thread; a backward is an input gradient, then a weight
  // gradient.
  using Work = std::function<void(plan::Pass pass, int stage, int micro_batch)>;

  // `elements` floats go from stage to stage and back.
  ToyStages(int stages, std::int64_t elements, Work work)
      : stages_(stages), elements_(elements), work_(std::move(work)) {}

  torch::nn::Module& module() override { return module_; }
  std::int64_t layers() const override { return stages_; }
  bool in_stage(const nn::Stage&, const std::string&) const override { return false; }
  Axes axes() const override { return {}; }
  std::vector<std::int64_t> activation_shape(const Batch&) const override { return {elements_}; }
  Loss loss(const Batch&) override { throw WorldError("a toy runs in stages"); }

  Output run_stage(const nn::Stage& stage, const torch::Tensor& in, const Batch& batch) override {
    const auto s = static_cast<int>(stage.begin), m = batch[0].item<int>();
    if (!stage.first) expect(in, 1000 * m + s, "activation", s);
    work_(plan::Pass::forward, s, m);
    const torch::Tensor out = stage.last ? torch::zeros({}) : message(1000 * m + s + 1);
    nn::record({out}, {stage.first ? start_ : in}, "toy",
               [this, stage, s, m](nn::Tensors&& gradient) -> nn::Tensors {
                 return {backward(stage, s, m, gradient[0])};
               });
    Output output;
    if (stage.last)
      output.loss = {out, 1};
    else
      output.activation = out;
    return output;
  }

  // One layer a stage.
  static std::vector<nn::Stage> stages(int count) {
    std::vector<nn::Stage> all;
    for (int s = 0; s < count; ++s) all.push_back({s, s + 1, s == 0, s + 1 == count});
    return all;
  }
  static Batch batch(int micro_batch) {
    return {torch::full({1}, micro_batch, torch::TensorOptions(torch::kInt))};
  }

 private:
  torch::Tensor message(int value) const { return torch::full({elements_}, float(value)); }

  static void expect(const torch::Tensor& x, int value, const char* what, int stage) {
    const auto got = x.min().item<float>();
    if (got != float(value) || x.max().item<float>() != got)
      throw WorldError(str("stage ", stage, " was given ", what, " ", got, ", not ", value));
  }

  torch::Tensor backward(const nn::Stage& stage, int s, int m, const torch::Tensor& gradient) {
    if (!stage.last) expect(gradient, 1000 * m + stages_ - 1 - s, "gradient", s);
    work_(plan::Pass::input_gradient, s, m);
    const auto weights = [this, s, m] { work_(plan::Pass::weight_gradient, s, m); };
    if (nn::WeightWork* later = nn::weight_work())
      later->add(weights);
    else
      weights();
    return stage.first ? torch::Tensor() : message(1000 * m + stages_ - s);
  }

  int stages_;
  std::int64_t elements_;
  Work work_;
  torch::nn::Module module_;
  torch::Tensor start_ = torch::zeros({1}, torch::requires_grad());
};

// Keeps no gradients; WorldError if a stage's micro-batches do not come in ascending order, each
// once.
class NoGradients : public StageGradients, private nn::GradSink {
 public:
  void begin(int stage, int micro_batch) override {
    if (int& next = next_[stage]; micro_batch != next++)
      throw WorldError(
          str("stage ", stage, ": gradient of micro-batch ", micro_batch, " came as ", next - 1));
  }
  nn::GradSink& sink(int) override { return *this; }
  void end(int, int) override {}
  // Micro-batches that came so far, of all stages.
  int count() const {
    int sum = 0;
    for (const auto& [stage, next] : next_) sum += next;
    return sum;
  }

 private:
  Target target(const torch::Tensor&) override { return {}; }
  void ready(const torch::Tensor&) override {}
  std::map<int, int> next_;
};

// A step of toy stages on this rank of `group`; returns the most activations it held at once.
inline int run_toy(const plan::PipelineSchedule& schedule,
                   const std::shared_ptr<collective::Group>& group, std::int64_t elements,
                   ToyStages::Work work) {
  ToyStages task(schedule.stages(), elements, std::move(work));
  Pipeline pipeline(schedule, ToyStages::stages(schedule.stages()), task, group);
  NoGradients gradients;
  Pipeline::Step step;
  step.batch = ToyStages::batch;
  step.before_forward = [](int) {};
  step.loss = [](int, const Loss&) {};
  pipeline.run(step, gradients);
  if (gradients.count() != schedule.chunks * schedule.micro_batches)
    throw WorldError(str("only ", gradients.count(), " weight gradients were made"));
  return pipeline.peak_activations();
}

}  // namespace tutti::parallel
