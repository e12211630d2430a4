// tutti train, tutti resume.
#include <iostream>
#include <memory>

#include "base/error.h"
#include "checkpoint/loader.h"
#include "cli/micro_batch.h"
#include "cli/runs.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "data/tokenizer_trainer.h"
#include "launch/cores.h"
#include "plan/layout.h"
#include "recipe/parse.h"
#include "recipe/show.h"

namespace tutti::cli {
namespace {

struct Options {
  std::string recipe, out;
  std::int64_t workers = 0;
  int host = 1;
  double timeout = 600;
  Hosts hosts;
  std::vector<std::string> overrides;
  bool json = false, quiet = false;

  Show show() const { return json ? Show::json : quiet ? Show::quiet : Show::automatic; }
};

void add_common(CLI::App* verb, const std::shared_ptr<Options>& options) {
  verb->add_option("--workers", options->workers, "processes; overrides parallel.workers")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}));
  verb->add_option("--set", options->overrides, "a.b=c: overrides a field of the recipe")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all();
  auto* hosts = verb->add_option("--hosts", options->hosts.hosts,
                                 "machines that share the run; the others call tutti join")
                    ->type_name("N")
                    ->check(CLI::Range(1, 65536));
  verb->add_option("--address", options->hosts.address, "of this host, as the others reach it")
      ->needs(hosts);
  auto* json = verb->add_flag("--json", options->json, "only the summary, as one JSON object");
  verb->add_flag("--quiet", options->quiet, "print nothing but errors")->excludes(json);
}

recipe::Recipe read_recipe(const fs::path& file, const Options& options, bool resume) {
  std::vector<std::string> overrides = options.overrides;
  if (options.workers > 0) overrides.push_back(str("parallel.workers=", options.workers));
  recipe::Parsed parsed = recipe::load(
      file, overrides, resume ? recipe::Inputs::data : recipe::Inputs::data_and_weights,
      plan::layout_violations);
  // A resolved recipe sets all options, also those without effect.
  if (!resume)
    for (const Violation& note : parsed.notes) std::cerr << "note: " << to_text(note) << "\n";
  return parsed.recipe;
}

// data.tokenizer = bpe-N becomes a tokenizer.json in the run's folder.
void learn_tokenizer(recipe::Data& data, const events::RunFolder& run, Show show) {
  const auto vocab = recipe::learnt_vocab(data.tokenizer);
  if (!vocab) return;
  if (show == Show::automatic)
    std::cerr << "learning a tokenizer of " << *vocab << " tokens from data.train\n";
  std::vector<std::string> sources;
  for (const recipe::Source& source : data.train) sources.push_back(source.path);
  data::TrainerOptions options;
  options.vocab = *vocab;
  data::train_tokenizer(sources, data.text_field, options, run.tokenizer());
  data.tokenizer = fs::absolute(run.tokenizer());
}

// Before anything is written. `wrong`: as a recipe's.
void check_hosts(const Options& options, const recipe::Parallel& parallel) {
  const Hosts& hosts = options.hosts;
  if (hosts.hosts == 1) return;
  std::vector<Violation> wrong;
  if (hosts.address.empty())
    wrong.push_back({"--address", "", "", "must be given with --hosts",
                     "the address by which the other hosts reach this one"});
  if (parallel.workers % hosts.hosts != 0)
    wrong.push_back({"--hosts", "", str(hosts.hosts),
                     str("must divide parallel.workers = ", parallel.workers),
                     "--workers sets them"});
  if (parallel.transport == "shm")
    wrong.push_back({"parallel.transport", "", "shm", "joins the ranks of one host alone",
                     "auto goes through memory within hosts and TCP between them"});
  if (!wrong.empty()) throw ConfigError(wrong);
}

int train(const Options& options) {
  find_worker();  // before anything is written
  if (!fs::exists(options.recipe))
    throw ConfigError(
        {{"RECIPE", "", options.recipe, "does not exist", "recipes/shakespeare.yaml is one"}});
  recipe::Recipe recipe = read_recipe(options.recipe, options, false);
  check_hosts(options, recipe.parallel);
  recipe::resolve(recipe, launch::usable_cores() * options.hosts.hosts);
  choose_micro_batch(recipe, options.show() == Show::automatic);
  const auto run =
      options.out.empty() ? events::create_dated_run(recipe.name) : events::create_run(options.out);
  const events::RunLock lock(run);
  learn_tokenizer(recipe.data, run, options.show());
  write_file(run.recipe(), recipe::to_yaml(recipe));
  return launch_run(run, recipe, false, options.show(), options.hosts);
}

// What a resumed run may change without becoming another run.
bool may_change(const std::string& field) {
  if (field == "parallel.threads") return false;  // other threads may sum in another order
  for (const char* of_islands :
       {"parallel.islands", "parallel.local_steps", "parallel.fragments", "parallel.overlap_steps"})
    if (field == of_islands) return false;
  for (const char* prefix : {"duration", "parallel.", "checkpoint.", "evaluation.", "logging.",
                             "on_nan", "data.train", "data.validation", "optimizer.state"})
    if (field.starts_with(prefix)) return true;
  return false;
}

// What is wrong may have remedies that a resumed run cannot take.
recipe::Recipe read_resumed(const fs::path& file, const Options& options) {
  try {
    return read_recipe(file, options, true);
  } catch (const ConfigError& error) {
    if (options.overrides.empty() && options.workers == 0) throw;
    throw ConfigError(
        str(error.what(),
            "\na resumed run keeps its model, batch and optimizer: "
            "change parallel.*, duration or optimizer.state alone, or start a new run"));
  }
}

int resume(const std::string& folder, const Options& options) {
  find_worker();
  const auto run = events::open_run(folder);
  const events::RunLock lock(run);
  std::vector<Violation> wrong;
  for (const std::string& text : options.overrides) {
    const std::string field = text.substr(0, text.find('='));
    if (!may_change(field))
      wrong.push_back({field, "--set", text.substr(std::min(text.size(), field.size() + 1)),
                       "would make it another run",
                       "start a new one: tutti train " + run.recipe().string()});
  }
  if (!wrong.empty()) throw ConfigError(wrong);
  recipe::Recipe recipe = read_resumed(run.recipe(), options);
  check_hosts(options, recipe.parallel);
  recipe::resolve(recipe, launch::usable_cores() * options.hosts.hosts);
  write_file(run.recipe(), recipe::to_yaml(recipe));
  for (const std::string& refused : checkpoint::latest(run.checkpoints()).refused)
    std::cerr << "warning: " << refused << "\n";
  return launch_run(run, recipe, true, options.show(), options.hosts);
}

}  // namespace

void add_train(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("train", "train what a recipe says");
  verb->add_option("RECIPE", options->recipe, "a YAML file; see tutti recipe reference")
      ->required();
  verb->add_option("--out", options->out, "the run's folder; default: runs/NAME-DATE")
      ->type_name("DIR");
  add_common(verb, options);
  verb->footer(example("tutti train recipes/shakespeare.yaml"));
  verb->callback([options, &chosen] { chosen = [options] { return train(*options); }; });
}

void add_resume(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      app.add_subcommand("resume", "go on with a run from its newest whole checkpoint");
  verb->add_option("DIR", options->out, "the run's folder")->required();
  add_common(verb, options);
  verb->footer(example("tutti resume runs/shakespeare"));
  verb->callback(
      [options, &chosen] { chosen = [options] { return resume(options->out, *options); }; });
}

void add_join(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("join", "take a share of a run that another host starts");
  verb->add_option("DIR", options->out, "the run's folder, which all hosts see")->required();
  verb->add_option("--host", options->host, "this one's number, from 1 on")
      ->type_name("N")
      ->required()
      ->check(CLI::Range(1, 65535));
  verb->add_option("--address", options->hosts.address, "of this host, as the others reach it")
      ->required();
  verb->add_option("--timeout", options->timeout, "seconds to wait for the first host (600)")
      ->type_name("S")
      ->check(CLI::Range(1.0, 1e6));
  verb->footer(example("tutti join runs/shakespeare --host 1 --address 10.0.0.2"));
  verb->callback([options, &chosen] {
    chosen = [options] {
      return join_run(options->out, options->host, options->hosts.address, options->timeout);
    };
  });
}

}  // namespace tutti::cli
