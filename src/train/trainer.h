// The loop: steps until the duration is over, evaluations, checkpoints, callbacks; exact
// resumption. The same loop serves recipes (run.h) and users' own modules (fit.h).
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "base/json.h"
#include "checkpoint/saver.h"
#include "parallel/engine.h"
#include "recipe/recipe.h"
#include "train/callback.h"
#include "train/divergence.h"
#include "train/samples.h"
#include "train/worker.h"

namespace tutti::train {

struct Result {
  std::int64_t steps = 0;  // optimizer steps of the whole run, resumed ones included
  double loss = 0;         // of the last step
  std::optional<double> validation_loss;
  double tokens_per_second = 0;  // over all ranks, first step of this process left out
  double mfu = 0;                // of the sgemm rate measured in this run; 0 if the cost is unknown
  double seconds = 0;            // of training in this process: steps, evaluations, checkpoints
  double first_step_seconds = 0;
  bool interrupted = false;  // told to stop; a checkpoint was saved
};

class Trainer {
 public:
  // All references must outlive the trainer. `validation` may be null. `world`: the group of all
  // ranks, for parallel.watch_divergence; null: nothing is compared.
  Trainer(const recipe::Recipe& recipe, const Worker& worker, parallel::Engine& engine,
          parallel::Task& task, Samples& train, Samples* validation,
          std::vector<std::shared_ptr<Callback>> callbacks,
          std::shared_ptr<collective::Group> world = nullptr);

  // Resumes from the newest whole checkpoint if the worker says so. WorldError: a lost peer, a full
  // disk, a gradient that is not finite (on_nan: stop), ranks that differ in what they hold alike
  // (parallel.watch_divergence). The last checkpoint is always whole.
  Result run();

 private:
  void resume();
  std::int64_t choose_checkpoint();
  void check_data(const Json& state) const;
  Json state() const;
  parallel::StepOutcome step();
  double learning_rate() const;
  void after(const parallel::StepOutcome& outcome, double seconds);
  void refuse_non_finite(const parallel::StepOutcome& outcome) const;
  bool due(const recipe::Duration& every) const;
  void refuse_divergence();
  void evaluate(StepEvent& event);
  void save();
  bool finished(const parallel::StepOutcome& outcome) const;
  void measure_peak();
  std::int64_t steps(const recipe::Duration& duration) const;

  const recipe::Recipe& recipe_;
  const Worker& worker_;
  parallel::Engine& engine_;
  parallel::Task& task_;
  Samples& train_;
  Samples* validation_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  checkpoint::Saver saver_;
  std::optional<DivergenceWatch> watch_;
  std::shared_ptr<comm::FlightRecorder> recorder_;  // may be null

  std::int64_t total_ = 0;    // steps; 0: the duration is in seconds
  std::int64_t step_ = 0;     // done
  std::int64_t samples_ = 0;  // used: the data position
  std::int64_t saved_ = -1;   // step of the newest checkpoint of ours
  std::int64_t alike_ = -1;   // step after which the ranks were compared last
  double started_ = 0;
  double elapsed_before_ = 0;  // seconds of training before this process
  double elapsed_ = 0;         // agreed by all ranks
  double peak_ = 0;            // flop/s of all ranks together
  double steady_seconds_ = 0, steady_targets_ = 0;
  Result result_;
};

}  // namespace tutti::train
