#include "train/recorder.h"

#include <array>

namespace tutti::train {

using Pair = std::pair<const char*, double>;

Recorder::Recorder(const Worker& worker, const recipe::Recipe& recipe, Json facts)
    : worker_(worker),
      facts_(std::move(facts)),
      writer_(events::RunFolder(worker.folder).events(worker.rank), worker.rank),
      tensorboard_wanted_(worker.rank == 0 && recipe.logging.tensorboard) {}

void Recorder::on_start(const StartEvent& event) {
  if (tensorboard_wanted_)
    tensorboard_ = std::make_unique<events::TensorBoard>(
        events::RunFolder(worker_.folder).tensorboard(), event.first_step);
  if (worker_.resume) writer_.instant("resume", event.first_step, {{"step", event.first_step}});
  facts_["workers"] = worker_.world_size;
  facts_["first_step"] = event.first_step;
  facts_["total_steps"] = event.total_steps;
  if (event.total_seconds > 0) {
    facts_["total_seconds"] = event.total_seconds;
    facts_["seconds_before"] = event.seconds_before;
  }
  writer_.instant("start", event.first_step, facts_);
}

void Recorder::on_step(const StepEvent& event) {
  const parallel::StepOutcome& o = event.outcome;
  const std::array own = {Pair{"step_seconds", event.seconds},
                          Pair{"data_seconds", o.data_seconds},
                          Pair{"forward_seconds", o.forward_seconds},
                          Pair{"backward_seconds", o.backward_seconds},
                          Pair{"wait_seconds", o.wait_seconds},
                          Pair{"optimizer_seconds", o.optimizer_seconds},
                          Pair{"exposed_seconds", o.exposed_seconds},
                          Pair{"loss", o.loss},
                          Pair{"lr", event.lr},
                          Pair{"grad_norm", o.grad_norm},
                          Pair{"tokens_per_second", event.tokens_per_second},
                          Pair{"mfu", event.mfu}};
  // The numbers that all ranks share are written once, by rank 0.
  writer_.scalars(event.step, std::span(own).first(worker_.rank == 0 ? own.size() : 7));
  if (!o.applied)
    writer_.instant("warning", event.step,
                    {{"text", "update skipped: " + o.culprit + " is not finite"}});
  if (tensorboard_)
    for (const auto& [name, value] : std::span(own).subspan(7))
      tensorboard_->scalar(name, event.step, value);
}

void Recorder::on_evaluation(std::int64_t step, double loss) {
  if (worker_.rank != 0) return;
  const std::array values = {Pair{"validation_loss", loss}};
  writer_.scalars(step, values);
  if (tensorboard_) tensorboard_->scalar("validation_loss", step, loss);
}

void Recorder::on_checkpoint(std::int64_t step) {
  if (worker_.rank == 0) writer_.instant("checkpoint", step, {{"step", step}});
}

void Recorder::on_span(const char* name, std::int64_t step, double start, double seconds) {
  writer_.span(name, step, start, seconds);
}

void Recorder::sample(std::int64_t step, const std::string& text) {
  writer_.instant("sample", step, {{"text", text}});
  if (tensorboard_) tensorboard_->text("sample", step, text);
}

void Recorder::done(const Result& result, const Json& more) {
  if (worker_.rank == 0) {
    Json data = {
        {"steps", result.steps},
        {"loss", result.loss},
        {"validation_loss", result.validation_loss ? Json(*result.validation_loss) : Json()},
        {"seconds", result.seconds}};
    if (result.first_step_seconds > 0) {  // else no step was left to do
      data["tokens_per_second"] = result.tokens_per_second;
      data["mfu"] = result.mfu;
      data["first_step_seconds"] = result.first_step_seconds;
    }
    data.update(more);
    writer_.instant("done", result.steps, data);
  }
  writer_.stop();
}

}  // namespace tutti::train
