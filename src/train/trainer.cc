#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/loader.h"
#include "optim/schedule.h"
#include "recipe/quantity.h"
#include "train/engine_state.h"

namespace tutti::train {
namespace {

// Best fp32 matrix product rate of this process in a short burst, flop/s.
double sgemm_rate() {
  torch::NoGradGuard no_grad;
  constexpr int n = 768;
  const auto a = torch::rand({n, n}), b = torch::rand({n, n});
  auto c = torch::empty({n, n});
  double best = 1e30;
  for (int i = 0; i < 12; ++i) {
    const double start = real_clock().now();
    torch::mm_out(c, a, b);
    best = std::min(best, real_clock().now() - start);
  }
  return 2.0 * n * n * n / best;
}

// The names of a module's parameters and buffers, in its order.
std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.key());
  for (const auto& buffer : module.named_buffers()) names.push_back(buffer.key());
  return names;
}

}  // namespace

Trainer::Trainer(const recipe::Recipe& recipe, const Worker& worker, parallel::Engine& engine,
                 parallel::Task& task, Samples& train, Samples* validation,
                 std::vector<std::shared_ptr<Callback>> callbacks,
                 std::shared_ptr<collective::Group> world)
    : recipe_(recipe),
      worker_(worker),
      engine_(engine),
      task_(task),
      train_(train),
      validation_(validation),
      callbacks_(std::move(callbacks)),
      saver_(worker.folder / "checkpoints", worker.rank, worker.world_size,
             {recipe.checkpoint.keep_last, steps(recipe.checkpoint.keep_every)}),
      recorder_(world ? world->recorder() : nullptr),
      total_(steps(recipe.duration)) {
  if (recipe.parallel.watch_divergence > 0 && world && world->size() > 1)
    watch_.emplace(std::move(world), names_of(task.module()));
}

std::int64_t Trainer::steps(const recipe::Duration& duration) const {
  const std::int64_t steps = recipe::steps_of(duration, train_.epoch_size(), recipe_.batch.global,
                                              train_.targets_per_sample());
  // What is not whole between means of islands waits for the next one.
  const std::int64_t period = std::max<std::int64_t>(1, recipe_.parallel.local_steps);
  return (steps + period - 1) / period * period;
}

bool Trainer::due(const recipe::Duration& every) const {
  const std::int64_t interval = steps(every);
  return interval > 0 && step_ % interval == 0;
}

// Rank 0 chooses, so that no rank goes on from another step because its disk said otherwise.
std::int64_t Trainer::choose_checkpoint() {
  constexpr std::int64_t none_whole = -2;
  std::int64_t step = -1;
  if (worker_.rank == 0) {
    const auto found = checkpoint::latest(worker_.folder / "checkpoints");
    for (const std::string& refused : found.refused) log_warning(refused);
    step = found.path.empty() && !found.refused.empty() ? none_whole : found.step;
  }
  step = engine_.agree(step);
  if (step == none_whole)
    throw WorldError("no whole checkpoint is left in " + (worker_.folder / "checkpoints").string());
  return step;
}

void Trainer::check_data(const Json& state) const {
  const std::string now = train_.fingerprint(), then = state.value("data", now);
  if (now != then)
    throw ConfigError({{"data.train", "", now, "is not what the run began with: " + then,
                        "bring that data back, or start a new run"}});
}

void Trainer::resume() {
  const std::int64_t step = choose_checkpoint();
  if (step < 0) {
    if (worker_.rank == 0) log_info("no checkpoint yet: starting from the first step");
    return;
  }
  const fs::path path = worker_.folder / "checkpoints" / checkpoint::step_folder_name(step);
  if (worker_.rank == 0) log_info(str("resuming from ", path.string()));
  const checkpoint::Loader loader(path, false);
  check_data(loader.state());
  read_state(loader, engine_);
  const Json& state = loader.state();
  engine_.set_scalars(state.at("engine").dump());
  step_ = state.at("step").get<std::int64_t>();
  samples_ = state.at("samples").get<std::int64_t>();
  elapsed_ = elapsed_before_ = state.at("seconds").get<double>();
  saved_ = step_;
  result_.loss = state.value("loss", 0.0);
  if (state.contains("validation_loss"))
    result_.validation_loss = state["validation_loss"].get<double>();
  const Json told = state.value("callbacks", Json::array());
  for (std::size_t i = 0; i < std::min(told.size(), callbacks_.size()); ++i)
    callbacks_[i]->set_state(told[i].get<std::string>());
}

double Trainer::learning_rate() const {
  const auto exactly = [&](const recipe::Duration& duration) {
    return recipe::steps_of(duration, train_.epoch_size(), recipe_.batch.global,
                            train_.targets_per_sample());
  };
  optim::Lengths lengths{total_, exactly(recipe_.schedule.warmup), exactly(recipe_.schedule.decay)};
  if (total_ > 0) {
    if (lengths.decay == 0) lengths.decay = std::max<std::int64_t>(1, total_ / 5);
    return optim::learning_rate(recipe_.schedule, recipe_.optimizer.lr, step_, lengths);
  }
  // A duration in seconds: the share of the time that is over stands for the step.
  constexpr std::int64_t parts = 1000000;
  const double share = std::min(1.0, elapsed_ / recipe_.duration.amount);
  const double warm =
      lengths.warmup == 0
          ? 1
          : std::min(1.0, static_cast<double>(step_ + 1) / static_cast<double>(lengths.warmup));
  return warm * optim::learning_rate(recipe_.schedule, recipe_.optimizer.lr,
                                     static_cast<std::int64_t>(share * parts),
                                     {parts, 0, parts / 5});
}

parallel::StepOutcome Trainer::step() {
  const std::int64_t micro = recipe_.batch.micro;
  const double start = real_clock().now();
  auto outcome =
      engine_.step({step_, learning_rate(), stop_requested(), elapsed_before_ + start - started_,
                    [&](std::int64_t id) { return train_.batch(samples_ + id * micro, micro); }});
  if (recorder_) recorder_->span(str("step ", step_ + 1).c_str(), start, real_clock().now());
  return outcome;
}

void Trainer::refuse_non_finite(const parallel::StepOutcome& outcome) const {
  if (outcome.applied || recipe_.on_nan == "skip" ||
      (recipe_.precision == "fp16" && std::isfinite(outcome.loss) && outcome.loss_scale > 1))
    return;
  throw WorldError(str("step ", step_ + 1, ": ",
                       outcome.culprit == "loss" ? "the loss" : "the gradient of ",
                       outcome.culprit == "loss" ? "" : outcome.culprit, " is not finite (loss ",
                       std::isnan(outcome.loss) ? std::string("nan") : str(outcome.loss),
                       "); nothing was updated and ",
                       saved_ < 0 ? std::string("there is no checkpoint yet")
                                  : str("the checkpoint of step ", saved_, " is whole"),
                       ". Lower optimizer.lr, or set on_nan: skip"));
}

// All ranks find the same, and end.
void Trainer::refuse_divergence() {
  if (!watch_ || alike_ == step_) return;
  const double wall = wall_seconds(), start = real_clock().now();
  const auto found = watch_->compare(held_by(engine_));
  if (found)
    throw WorldError(
        str("step ", step_, ": ", to_text(*found), ". ",
            alike_ < 0 ? std::string("No step before was compared")
                       : str("All were alike after step ", alike_),
            "; checkpoints hold only what was compared. Check memory, host and transport of ",
            ranks_text(suspects(*found)), ", and that all ranks run the same program; then ",
            saved_ < 0 ? std::string("start again: there is no checkpoint yet")
                       : str("resume, which goes on from step ", saved_)));
  alike_ = step_;
  for (const auto& callback : callbacks_)
    callback->on_span("comparison", step_, wall, real_clock().now() - start);
}

void Trainer::evaluate(StepEvent& event) {
  if (!validation_) return;
  const double wall = wall_seconds(), start = real_clock().now();
  const std::int64_t micro = recipe_.batch.micro;
  const std::int64_t samples = validation_->epoch_size(), parts = (samples + micro - 1) / micro;
  std::int64_t count = parts;
  if (recipe_.evaluation.batches > 0)
    count = std::min(parts, recipe_.evaluation.batches * recipe_.batch.global / micro);
  // A part of the held-out data is one that lies evenly over all of it.
  const double loss = engine_.evaluate(count, [&](std::int64_t id) {
    const std::int64_t first = id * parts / count * micro;
    return validation_->batch(first, std::min(micro, samples - first));
  });
  event.validation_loss = result_.validation_loss = loss;
  const double seconds = real_clock().now() - start;
  for (const auto& callback : callbacks_) {
    callback->on_span("evaluation", step_, wall, seconds);
    callback->on_evaluation(step_, loss);
  }
}

Json Trainer::state() const {
  Json state = {{"step", step_},
                {"samples", samples_},
                {"seconds", elapsed_},
                {"seed", recipe_.seed},
                {"data", train_.fingerprint()},
                {"loss", std::isfinite(result_.loss) ? result_.loss : 0},
                {"callbacks", Json::array()},
                {"model", parse_json(task_.description(), "model")},
                {"engine", parse_json(engine_.scalars(), "engine")}};
  if (result_.validation_loss) state["validation_loss"] = *result_.validation_loss;
  for (const auto& callback : callbacks_) state["callbacks"].push_back(callback->state());
  return state;
}

void Trainer::save() {
  if (saved_ == step_) return;
  refuse_divergence();
  const double wall = wall_seconds(), start = real_clock().now();
  const auto tensors = engine_.state();
  saver_.save(step_, views_of(tensors), state());
  if (!recipe_.checkpoint.asynchronous) saver_.wait();
  saved_ = step_;
  const double seconds = real_clock().now() - start;
  for (const auto& callback : callbacks_) {
    callback->on_span("checkpoint", step_, wall, seconds);
    callback->on_checkpoint(step_);
  }
}

bool Trainer::finished(const parallel::StepOutcome& outcome) const {
  if (outcome.stop) return true;
  for (const auto& callback : callbacks_)
    if (callback->should_stop()) return true;
  return total_ > 0 ? step_ >= total_ : elapsed_ >= recipe_.duration.amount;
}

void Trainer::measure_peak() {
  if (task_.flops_per_sample() > 0) peak_ = sgemm_rate() * worker_.world_size;
}

void Trainer::after(const parallel::StepOutcome& outcome, double seconds) {
  StepEvent event;
  event.lr = learning_rate();
  event.step = ++step_;
  event.total_steps = total_;
  event.seconds = seconds;
  event.outcome = outcome;
  samples_ += recipe_.batch.global;
  elapsed_ = std::max(elapsed_, outcome.elapsed);
  result_.steps = step_;
  result_.loss = outcome.loss;
  result_.interrupted = outcome.stop;
  if (result_.first_step_seconds == 0) {
    result_.first_step_seconds = seconds;
    measure_peak();
  } else {
    steady_seconds_ += seconds;
    steady_targets_ += outcome.count;
    result_.tokens_per_second = steady_targets_ / steady_seconds_;
  }
  event.tokens_per_second = outcome.count / seconds;
  const double flops = task_.flops_per_sample() / static_cast<double>(train_.targets_per_sample());
  if (peak_ > 0) {
    peak_ =
        std::max(peak_, event.tokens_per_second * flops);  // the core was busy when it was measured
    event.mfu = event.tokens_per_second * flops / peak_;
    result_.mfu = result_.tokens_per_second * flops / peak_;
  }
  if (due(recipe_.evaluation.every)) evaluate(event);
  for (const auto& callback : callbacks_) callback->on_step(event);
  const auto watched = static_cast<double>(recipe_.parallel.watch_divergence);
  if (watch_ && due({watched, recipe::Duration::Unit::steps})) refuse_divergence();
  if (due(recipe_.checkpoint.every)) save();
}

Result Trainer::run() {
  if (worker_.resume) resume();
  const StartEvent start_event{step_, total_, elapsed_before_,
                               total_ > 0 ? 0 : recipe_.duration.amount};
  for (const auto& callback : callbacks_) callback->on_start(start_event);
  started_ = real_clock().now();
  task_.module().train();
  bool over = total_ > 0 && step_ >= total_;
  while (!over) {
    const double start = real_clock().now();
    const parallel::StepOutcome outcome = step();
    refuse_non_finite(outcome);
    after(outcome, real_clock().now() - start);
    over = finished(outcome);
  }
  if (!result_.interrupted && !due(recipe_.evaluation.every)) {
    StepEvent last;
    evaluate(last);
  }
  save();
  saver_.wait();
  result_.steps = step_;
  result_.seconds = real_clock().now() - started_;
  for (const auto& callback : callbacks_) callback->on_end(step_);
  return result_;
}

}  // namespace tutti::train
