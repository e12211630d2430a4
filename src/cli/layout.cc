// tutti layout show RECIPE: where each parameter lies, and which collectives a step has.
#include <memory>

#include "cli/micro_batch.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "comm/cost_table.h"
#include "launch/cores.h"
#include "plan/layout.h"
#include "recipe/check.h"
#include "recipe/parse.h"
#include "recipe/show.h"

namespace tutti::cli {
namespace {

struct Options {
  std::string file, profile, transport;
  std::vector<std::string> overrides;
};

// Data may lie on another machine; a tokenizer that is yet to be learnt has so many ids.
int show(const Options& options) {
  recipe::Recipe recipe =
      recipe::load(options.file, options.overrides, recipe::Inputs::none, plan::layout_violations)
          .recipe;
  recipe::resolve(recipe, launch::usable_cores());
  choose_micro_batch(recipe);
  if (const auto vocab = recipe::learnt_vocab(recipe.data.tokenizer)) {
    recipe.data.tokenizer = "bytes";
    if (recipe.model.vocab == 0) recipe.model.vocab = *vocab;
  }
  std::vector<std::string> words{"layout", "--recipe=" + recipe::to_yaml(recipe)};
  if (!options.profile.empty()) {
    comm::CostTable::read(options.profile, options.transport);  // refused before the work
    words.insert(words.end(), {"--profile=" + options.profile, "--transport=" + options.transport});
  }
  become_worker(words);
}

}  // namespace

void add_layout(CLI::App& app, Action& chosen) {
  CLI::App* group = app.add_subcommand("layout", "look at how a recipe spreads its model");
  group->require_subcommand(1);
  group->footer(example("tutti layout show recipes/gpt2_tiny.yaml"));
  CLI::App* verb = group->add_subcommand(
      "show", "each parameter's place, each collective of a step with its bytes");
  auto options = std::make_shared<Options>();
  add_recipe_options(verb, options->file, options->overrides);
  auto* costs = verb->add_option("--profile", options->profile,
                                 "of tutti bench comm: how long the collectives should take")
                    ->type_name("FILE");
  verb->add_option("--transport", options->transport, "of the profile; default: its first")
      ->needs(costs);
  verb->footer(
      example("tutti layout show recipes/gpt2_tiny.yaml --set parallel.engine=mesh --set "
              "parallel.workers=2 --set parallel.tensor=2"));
  verb->callback([options, &chosen] { chosen = [options]() -> int { return show(*options); }; });
}

}  // namespace tutti::cli
