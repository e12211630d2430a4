#include "train/fit.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "events/live.h"
#include "events/report.h"
#include "events/summary.h"
#include "launch/cores.h"
#include "launch/local.h"
#include "parallel/replicated.h"
#include "recipe/check.h"
#include "recipe/show.h"
#include "train/recorder.h"

namespace tutti::train {
namespace {

// What a worker needs beside its rank; the launcher sets it.
constexpr const char* run_variable = "TUTTI_RUN";
constexpr const char* resume_variable = "TUTTI_RESUME";

Result work(const recipe::Recipe& recipe, const Worker& worker, parallel::Task& task,
            Samples& train, Samples* validation, std::vector<std::shared_ptr<Callback>> callbacks) {
  catch_stop_signals();
  prepare_process(recipe.parallel.threads);
  const auto group = open_group(worker, recipe.parallel);
  parallel::ReplicatedEngine engine(recipe, task, group);
  const auto recorder = std::make_shared<Recorder>(worker, recipe,
                                                   Json{{"name", recipe.name},
                                                        {"parameters", engine.parameter_count()},
                                                        {"threads", recipe.parallel.threads},
                                                        {"transport", group->transport()},
                                                        {"precision", recipe.precision}});
  callbacks.push_back(recorder);
  Trainer trainer(recipe, worker, engine, task, train, validation, std::move(callbacks));
  const Result result = trainer.run();
  recorder->done(result, {{"name", recipe.name}, {"parameters", engine.parameter_count()}});
  return result;
}

Result result_of(const Json& summary) {
  const auto number = [&](const char* key) {
    return summary.contains(key) && summary[key].is_number() ? summary[key].get<double>() : 0;
  };
  Result result;
  result.steps = static_cast<std::int64_t>(number("steps"));
  result.loss = number("loss");
  if (summary["validation_loss"].is_number()) result.validation_loss = number("validation_loss");
  result.tokens_per_second = number("tokens_per_second");
  result.mfu = number("mfu");
  result.seconds = number("seconds");
  result.first_step_seconds = number("first_step_seconds");
  result.interrupted = summary["exit"] == exit_interrupted;
  return result;
}

Result launch_self(int argc, char** argv, const recipe::Recipe& recipe,
                   const events::RunFolder& run, const FitOptions& options) {
  launch::Job job;
  job.program = fs::read_symlink("/proc/self/exe");
  job.args.assign(argv + 1, argv + argc);
  job.env = {{run_variable, run.path().string()}, {resume_variable, options.resume ? "1" : "0"}};
  job.workers = static_cast<int>(recipe.parallel.workers);
  job.threads = static_cast<int>(recipe.parallel.threads);
  job.log_folder = run.logs();

  using Mode = events::LiveOptions::Mode;
  events::LiveOptions live;
  live.mode = options.quiet ? Mode::quiet : ::isatty(STDOUT_FILENO) ? Mode::terminal : Mode::plain;
  live.color = live.mode == Mode::terminal && !std::getenv("NO_COLOR");
  events::LiveView view(live, run, job.workers, std::cout, real_clock());
  launch::Hooks hooks;
  hooks.tick = [&] { view.tick(); };
  const launch::Outcome outcome = launch::run_local(job, hooks);
  const Json summary = events::make_summary(run, outcome.exit_code, job.workers);
  events::write_summary(run, summary);
  if (recipe.logging.report) events::write_report(run);
  view.finish(summary);
  if (outcome.exit_code != exit_ok && !outcome.interrupted)
    throw WorldError("the training failed: " + outcome.reason);
  return result_of(summary);
}

}  // namespace

Result fit(int argc, char** argv, const recipe::Recipe& asked, parallel::Task& task, Samples& train,
           Samples* validation, std::vector<std::shared_ptr<Callback>> callbacks,
           const FitOptions& options) {
  recipe::Recipe recipe = asked;
  recipe::resolve(recipe, launch::usable_cores());
  if (recipe.batch.global % recipe.batch.micro != 0)
    throw ConfigError({{"batch.micro", "", str(recipe.batch.micro),
                        str("must divide batch.global = ", recipe.batch.global), ""}});
  if (const char* folder = std::getenv(run_variable))
    return work(recipe,
                worker_from_environment(folder, std::getenv(resume_variable) == std::string("1")),
                task, train, validation, std::move(callbacks));
  const auto run = options.resume        ? events::open_run(options.out)
                   : options.out.empty() ? events::create_dated_run(recipe.name)
                                         : events::create_run(options.out);
  const events::RunLock lock(run);
  write_file(run.recipe(), recipe::to_yaml(recipe));
  return launch_self(argc, argv, recipe, run, options);
}

}  // namespace tutti::train
