// Backward in two passes, for pipeline schedules that fill holes with weight gradients (Qi et al.,
// "Zero bubble pipeline parallelism", ICLR 2024, section 2): while a WeightWork is set for the
// thread, matrix products for weight gradients are not run but kept; run() does them, with the sink
// of that time. Other weights' gradients (norms, biases, embeddings) are cheap: they are computed
// at once, kept aside, and handed over by run() too.
//
// Only gradients that go through a GradSink can wait; the sink that is set when run() is called
// must accept the same parameters.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "nn/grad_sink.h"

namespace tutti::nn {

class WeightWork {
 public:
  WeightWork();
  ~WeightWork();
  WeightWork(WeightWork&&) noexcept;
  WeightWork& operator=(WeightWork&&) noexcept;

  void add(std::function<void()> product);
  // In the order of the backward pass. Once.
  void run();

  // Takes the place of the thread's sink during the first pass: keeps gradients aside.
  GradSink& aside();

 private:
  class Aside;
  std::vector<std::function<void()>> work_;
  std::unique_ptr<Aside> aside_;
};

// The calling thread's, or null: weight gradients are computed at once.
WeightWork* weight_work();

// Sets `work`, and its aside() as the sink, for the thread and the scope's lifetime.
class WeightWorkScope {
 public:
  explicit WeightWorkScope(WeightWork& work);
  ~WeightWorkScope();
  WeightWorkScope(const WeightWorkScope&) = delete;
  WeightWorkScope& operator=(const WeightWorkScope&) = delete;

 private:
  WeightWork* outer_;
  GradSinkScope sink_;
};

}  // namespace tutti::nn
