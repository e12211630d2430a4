// eval, generate, export: checked here (so that --help and mistakes need no libtorch), then done by
// tutti-worker in our place.
#include "cli/verbs.h"
#include "cli/worker.h"

namespace tutti::cli {
namespace {

// The verb and what was typed after it, options in their long form.
std::vector<std::string> arguments_of(const CLI::App& verb) {
  std::vector<std::string> args{verb.get_name()};
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() == 0 || option->get_single_name() == "help") continue;
    if (option->get_positional()) {
      args.push_back(option->as<std::string>());
    } else if (option->get_expected_min() == 0) {
      args.push_back(option->get_name());
    } else {
      args.push_back(option->get_name() + "=" + option->as<std::string>());
    }
  }
  return args;
}

CLI::App* add(CLI::App& app, Action& chosen, const char* name, const char* what) {
  CLI::App* verb = app.add_subcommand(name, what);
  verb->add_option("DIR", "the run folder")->required()->check(CLI::ExistingDirectory);
  verb->add_option("--checkpoint", "the step to use; default: the last one")
      ->type_name("STEP")
      ->check(CLI::NonNegativeNumber);
  verb->callback(
      [verb, &chosen] { chosen = [verb]() -> int { become_worker(arguments_of(*verb)); }; });
  return verb;
}

}  // namespace

void add_worker_verbs(CLI::App& app, Action& chosen) {
  CLI::App* eval = add(app, chosen, "eval", "the loss of a run's model on its validation data");
  eval->add_flag("--json", [](std::int64_t) {}, "one JSON object");
  eval->footer(example("tutti eval runs/shakespeare"));

  CLI::App* generate = add(app, chosen, "generate", "let a run's model write");
  generate->add_option("--prompt", "what to go on from")->type_name("TEXT");
  generate->add_option("--tokens", "how many to write")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  generate->add_option("--seed", "same seed, same text")
      ->type_name("S")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--temperature", "0: always the likeliest token; 1: as learnt")
      ->type_name("T")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--top-k", "choose among the K likeliest; 0: all")
      ->type_name("K")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--top-p", "choose among the likeliest that make up P")
      ->type_name("P")
      ->check(CLI::Range(0.0, 1.0));
  generate->footer(
      example("tutti generate runs/shakespeare --prompt 'ROMEO:' --tokens 200 --seed 1"));

  CLI::App* write = add(app, chosen, "export", "write a Hugging Face folder");
  write->add_option("--to", "the folder")->required()->type_name("FOLDER");
  write->footer(example("tutti export runs/shakespeare --to shakespeare-hf"));
}

}  // namespace tutti::cli
