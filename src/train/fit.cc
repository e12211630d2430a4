#include "train/fit.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/loader.h"
#include "events/live.h"
#include "events/report.h"
#include "events/summary.h"
#include "launch/cores.h"
#include "launch/local.h"
#include "parallel/engines.h"
#include "parallel/staged_task.h"
#include "plan/layout.h"
#include "recipe/check.h"
#include "recipe/fields.h"
#include "recipe/show.h"
#include "recipe/suggest.h"
#include "train/recorder.h"

namespace tutti::train {
namespace {

// What a worker needs beside its rank; the launcher sets it.
constexpr const char* run_variable = "TUTTI_RUN";
constexpr const char* resume_variable = "TUTTI_RESUME";
// A program may call fit() several times; a worker is started for one of the calls and finds in
// RUNS the folders of those before it, separated by newlines.
constexpr const char* earlier_variable = "TUTTI_EARLIER_RUNS";

Result work(const recipe::Recipe& recipe, const Worker& worker, parallel::Task& task,
            Samples& train, Samples* validation, std::vector<std::shared_ptr<Callback>> callbacks) {
  catch_stop_signals();
  prepare_process(recipe);
  const auto group = open_group(worker, recipe.parallel);
  const auto engine = parallel::make_engine(recipe, task, group);
  const auto recorder = std::make_shared<Recorder>(worker, recipe,
                                                   Json{{"name", recipe.name},
                                                        {"parameters", engine->parameter_count()},
                                                        {"threads", recipe.parallel.threads},
                                                        {"transport", group->transport()},
                                                        {"precision", recipe.precision}});
  callbacks.push_back(recorder);
  Trainer trainer(recipe, worker, *engine, task, train, validation, std::move(callbacks), group);
  const Result result = trainer.run();
  recorder->done(result, {{"name", recipe.name}, {"parameters", engine->parameter_count()}});
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

// The runs of this program's calls of fit() so far, in the launcher.
std::vector<std::string>& earlier_runs() {
  static std::vector<std::string> runs;
  return runs;
}

// After a training the module holds what was learnt, in the launcher as in later calls' workers.
void load_trained(torch::nn::Module& module, const events::RunFolder& run) {
  const auto found = checkpoint::latest(run.checkpoints());
  if (found.path.empty()) return;
  const checkpoint::Loader loader(found.path, false);
  torch::NoGradGuard no_grad;
  const auto load = [&](const std::string& name, torch::Tensor value) {
    const auto copy = torch::empty_like(value, torch::MemoryFormat::Contiguous);
    loader.read("model/" + name, whole(copy.sizes().vec()),
                static_cast<std::byte*>(copy.data_ptr()));
    value.copy_(copy);
  };
  for (auto& named : module.named_parameters()) load(named.key(), named.value());
  for (auto& named : module.named_buffers())
    if (named.value().numel() > 0) load(named.key(), named.value());
}

// In a worker: the run of this call if it is one of the earlier ones.
std::optional<events::RunFolder> finished_call() {
  static std::size_t calls = 0;
  const char* text = std::getenv(earlier_variable);
  std::istringstream runs(text ? text : "");
  std::string path;
  for (std::size_t i = 0; std::getline(runs, path); ++i)
    if (i == calls) return ++calls, events::RunFolder(path);
  return {};
}

// A program sets fields without the parser's checks.
std::vector<Violation> out_of_range(const recipe::Recipe& recipe) {
  std::vector<Violation> found;
  for (const recipe::Field& field : recipe::fields()) {
    if (field.kind == recipe::Kind::sources) continue;
    recipe::Recipe copy = recipe;
    const std::string value = field.get(recipe);
    if (!field.set(copy, value))
      found.push_back(
          {field.name, "fit()", value, field.rule, recipe::suggest_value(field, value)});
  }
  return found;
}

Result launch_self(int argc, char** argv, const recipe::Recipe& recipe,
                   const events::RunFolder& run, const FitOptions& options) {
  launch::Job job;
  job.program = fs::read_symlink("/proc/self/exe");
  job.args.assign(argv + 1, argv + argc);
  job.env = {{run_variable, run.path().string()},
             {resume_variable, options.resume ? "1" : "0"},
             {earlier_variable, join(earlier_runs(), "\n")}};
  job.workers = static_cast<int>(recipe.parallel.workers);
  job.threads = static_cast<int>(recipe.parallel.threads);
  job.log_folder = run.logs();

  using Mode = events::LiveOptions::Mode;
  events::LiveOptions live;
  live.mode = options.quiet ? Mode::quiet : ::isatty(STDOUT_FILENO) ? Mode::terminal : Mode::plain;
  if (recipe.logging.every.unit == recipe::Duration::Unit::steps)
    live.every_steps =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(recipe.logging.every.amount));
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
  recipe.model.own = true;
  if (const auto* staged = dynamic_cast<const parallel::StagedTask*>(&task))
    recipe.model.layers = staged->layers();
  recipe::resolve(recipe, launch::usable_cores());
  recipe::Recipe checked = recipe;
  checked.data.train = {{"the program's", 1}};
  if (auto out = out_of_range(checked); !out.empty()) throw ConfigError(out);
  auto wrong = recipe::contradictions(checked, [](const std::string&) { return "fit()"; });
  if (recipe.batch.micro == 0)
    wrong.push_back({"batch.micro", "fit()", "auto", "needs a model that a recipe describes",
                     "set it to a number of samples"});
  for (Violation& one : plan::layout_violations(recipe)) wrong.push_back(std::move(one));
  if (!wrong.empty()) throw ConfigError(wrong);
  parallel::require_engine(recipe);
  parallel::require_spreadable(recipe, task);
  if (const char* folder = std::getenv(run_variable)) {
    if (const auto earlier = finished_call()) {
      load_trained(task.module(), *earlier);
      return result_of(parse_json(read_file(earlier->summary()), earlier->summary().string()));
    }
    const Result result = work(
        recipe, worker_from_environment(folder, std::getenv(resume_variable) == std::string("1")),
        task, train, validation, std::move(callbacks));
    std::cout.flush();
    std::exit(result.interrupted ? exit_interrupted : exit_ok);  // what follows is the launcher's
  }
  const auto run = options.resume        ? events::open_run(options.out)
                   : options.out.empty() ? events::create_dated_run(recipe.name)
                                         : events::create_run(options.out);
  const events::RunLock lock(run);
  write_file(run.recipe(), recipe::to_yaml(recipe));
  const Result result = launch_self(argc, argv, recipe, run, options);
  load_trained(task.module(), run);
  earlier_runs().push_back(fs::absolute(run.path()).string());
  return result;
}

}  // namespace tutti::train
