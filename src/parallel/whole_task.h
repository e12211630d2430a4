// Any task as a staged one of a single stage, which nothing but data can spread.
#pragma once
#include "parallel/staged_task.h"

namespace tutti::parallel {

class WholeTask : public StagedTask {
 public:
  explicit WholeTask(Task& task) : task_(task) {}  // must outlive this
  torch::nn::Module& module() override { return task_.module(); }
  Loss loss(const Batch& batch) override { return task_.loss(batch); }
  double flops_per_sample() const override { return task_.flops_per_sample(); }
  std::string description() const override { return task_.description(); }
  bool input_first(const std::string& parameter) const override {
    return task_.input_first(parameter);
  }
  void at(std::int64_t step, std::int64_t micro_batch) override { task_.at(step, micro_batch); }

  torch::Tensor take_counts() override { return task_.take_counts(); }
  void counted(const torch::Tensor& sum) override { task_.counted(sum); }
  bool exact_buffers() const override { return task_.exact_buffers(); }

  std::int64_t layers() const override { return 1; }
  Output run_stage(const nn::Stage&, const torch::Tensor&, const Batch& batch) override {
    return {{}, task_.loss(batch)};
  }
  bool in_stage(const nn::Stage&, const std::string&) const override { return true; }
  std::vector<std::int64_t> activation_shape(const Batch&) const override { return {}; }
  Axes axes() const override { return {}; }

 private:
  Task& task_;
};

}  // namespace tutti::parallel
