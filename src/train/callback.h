// What a training run tells those who watch it, and what they may ask of it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "parallel/engine.h"

namespace tutti::train {

// When training begins: where it stands and how far it goes, in steps and in seconds of training.
struct StartEvent {
  std::int64_t first_step = 0;   // steps done before, by the run that is resumed
  std::int64_t total_steps = 0;  // 0: the duration is in seconds
  double seconds_before = 0;
  double total_seconds = 0;  // 0: the duration is in steps
};

// After an optimizer step. Loss and norm are those of the global batch; `step` counts from 1.
struct StepEvent {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;  // 0: not known (a duration in seconds)
  double lr = 0;
  double seconds = 0;                     // of this step, wall time on this rank
  double tokens_per_second = 0;           // targets a second over all ranks
  double mfu = 0;                         // 0 if the task does not know its cost
  std::optional<double> validation_loss;  // set on steps after which an evaluation ran
  parallel::StepOutcome outcome;
};

// Runs on every rank at the same steps; callbacks that decide must decide alike on all ranks, which
// they do when they look only at losses, norms, steps (the same bits everywhere).
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_start(const StartEvent&) {}
  virtual void on_step(const StepEvent&) {}
  virtual void on_evaluation(std::int64_t /*step*/, double /*validation_loss*/) {}
  virtual void on_checkpoint(std::int64_t /*step*/) {}
  // Time between steps that an "evaluation", a "comparison" of ranks or a "checkpoint" took (of
  // this one: while training stood still); `start` in seconds since 1970.
  virtual void on_span(const char* /*name*/, std::int64_t /*step*/, double /*start*/,
                       double /*seconds*/) {}
  // What of it a checkpoint keeps, so that a resumed run decides alike.
  virtual std::string state() const { return ""; }
  virtual void set_state(const std::string&) {}
  // True ends the run after this step, in order: evaluation, checkpoint, report.
  virtual bool should_stop() const { return false; }
  virtual void on_end(std::int64_t /*steps*/) {}
};

// Stops when the validation loss has not fallen by `min_delta` for `patience` evaluations.
class EarlyStop : public Callback {
 public:
  explicit EarlyStop(int patience, double min_delta = 0)
      : patience_(patience), min_delta_(min_delta) {}
  void on_evaluation(std::int64_t, double loss) override {
    if (!best_ || loss < *best_ - min_delta_) {
      best_ = loss;
      waited_ = 0;
    } else {
      ++waited_;
    }
  }
  bool should_stop() const override { return waited_ >= patience_; }
  std::string state() const override {
    return best_ ? Json{{"best", *best_}, {"waited", waited_}}.dump() : "";
  }
  void set_state(const std::string& text) override {
    if (text.empty()) return;
    const Json json = parse_json(text, "early stop");
    best_ = json.at("best").get<double>();
    waited_ = json.at("waited").get<int>();
  }

 private:
  int patience_;
  double min_delta_;
  std::optional<double> best_;
  int waited_ = 0;
};

}  // namespace tutti::train
