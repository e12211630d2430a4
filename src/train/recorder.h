// A callback that writes what happens into the run folder: events of every rank, and TensorBoard
// files by rank 0. docs/formats/events.md names the records.
#pragma once
#include <memory>

#include "events/run_folder.h"
#include "events/tensorboard.h"
#include "events/writer.h"
#include "recipe/recipe.h"
#include "train/callback.h"
#include "train/trainer.h"
#include "train/worker.h"

namespace tutti::train {

class Recorder : public Callback {
 public:
  // `facts` go into the record "start": parameters, transport, threads and the like.
  Recorder(const Worker& worker, const recipe::Recipe& recipe, Json facts);
  void on_start(const StartEvent& event) override;
  void on_step(const StepEvent& event) override;
  void on_evaluation(std::int64_t step, double loss) override;
  void on_checkpoint(std::int64_t step) override;
  void on_span(const char* name, std::int64_t step, double start, double seconds) override;

  void sample(std::int64_t step, const std::string& text);
  // The last record: the numbers of the summary.
  void done(const Result& result, const Json& more);

 private:
  Worker worker_;
  Json facts_;
  events::Writer writer_;
  bool tensorboard_wanted_;
  std::unique_ptr<events::TensorBoard> tensorboard_;
};

}  // namespace tutti::train
