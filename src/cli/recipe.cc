// tutti recipe check | show | schema | reference.
#include <iostream>
#include <memory>

#include "base/error.h"
#include "cli/micro_batch.h"
#include "cli/verbs.h"
#include "plan/layout.h"
#include "recipe/parse.h"
#include "recipe/show.h"

namespace tutti::cli {
namespace {

struct Options {
  std::string file;
  std::vector<std::string> overrides;
};

recipe::Recipe read(const Options& options) {
  // Data may lie on another machine: only train asks for it.
  const auto parsed =
      recipe::load(options.file, options.overrides, recipe::Inputs::none, plan::layout_violations);
  for (const Violation& note : parsed.notes) std::cerr << "note: " << to_text(note) << "\n";
  recipe::Recipe recipe = parsed.recipe;
  choose_micro_batch(recipe);
  return recipe;
}

CLI::App* add_file_verb(CLI::App* group, const std::shared_ptr<Options>& options, const char* name,
                        const char* help) {
  CLI::App* verb = group->add_subcommand(name, help);
  add_recipe_options(verb, options->file, options->overrides);
  verb->footer(example(std::string("tutti recipe ") + name + " recipes/shakespeare.yaml"));
  return verb;
}

}  // namespace

void add_recipe(CLI::App& app, Action& chosen) {
  CLI::App* group = app.add_subcommand("recipe", "look at recipes without running them");
  group->require_subcommand(0, 1);
  group->footer(example("tutti recipe check recipes/shakespeare.yaml"));
  auto options = std::make_shared<Options>();
  add_file_verb(group, options, "check", "report every mistake")->callback([options, &chosen] {
    chosen = [options] {
      read(*options);
      std::cout << options->file << ": good\n";
      return exit_ok;
    };
  });
  add_file_verb(group, options, "show", "print the recipe with all its fields")
      ->callback([options, &chosen] {
        chosen = [options] {
          std::cout << recipe::to_yaml(read(*options));
          return exit_ok;
        };
      });
  const auto add_text = [&](const char* name, const char* help, std::string (*text)()) {
    CLI::App* verb = group->add_subcommand(name, help);
    verb->footer(example(std::string("tutti recipe ") + name));
    verb->callback([text, &chosen] {
      chosen = [text] {
        std::cout << text();
        return exit_ok;
      };
    });
  };
  add_text("schema", "print a JSON Schema for editors", recipe::json_schema);
  add_text("reference", "print every field with its meaning", recipe::markdown_reference);
}

}  // namespace tutti::cli
