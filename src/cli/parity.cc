// tutti parity RECIPE: whether the recipe's layout trains the same model as one device.
#include <unistd.h>

#include <iostream>
#include <memory>

#include "base/error.h"
#include "cli/micro_batch.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "data/tokenizer.h"
#include "launch/cores.h"
#include "plan/layout.h"
#include "recipe/check.h"
#include "recipe/parse.h"
#include "recipe/show.h"

namespace tutti::cli {
namespace {

struct Options {
  std::string file, precision = "fp64", html, fault;
  std::vector<std::string> overrides;
  std::int64_t steps = 2;
  double tolerance = 0;
};

// Numbers do not depend on which tokens they are of: nothing is learnt for this.
void use_bytes(recipe::Data& data) {
  if (!recipe::learnt_vocab(data.tokenizer)) return;
  std::cerr << "note: parity runs on bytes in place of " << data.tokenizer << "\n";
  data.tokenizer = "bytes";
}

// Before the work, not after it.
void check_page(const fs::path& page) {
  if (page.empty()) return;
  const fs::path folder = page.has_parent_path() ? page.parent_path() : fs::path(".");
  if (fs::is_directory(page))
    throw ConfigError({{"--html", "", page.string(), "is a folder", "name a file in it"}});
  if (!fs::is_directory(folder))
    throw ConfigError({{"--html", "", page.string(), "lies in no folder", "make it first"}});
  if (::access(fs::exists(page) ? page.c_str() : folder.c_str(), W_OK) != 0)
    throw ConfigError({{"--html", "", page.string(), "may not be written: " + errno_text(),
                        "name another file"}});
}

int run(const Options& options) {
  const auto parsed = recipe::load(options.file, options.overrides,
                                   recipe::Inputs::data_and_weights, plan::layout_violations);
  recipe::Recipe recipe = parsed.recipe;
  recipe::resolve(recipe, launch::usable_cores());
  choose_micro_batch(recipe);
  use_bytes(recipe.data);
  check_page(options.html);
  std::vector<std::string> args{"parity", "--recipe=" + recipe::to_yaml(recipe),
                                "--precision=" + options.precision, str("--steps=", options.steps),
                                str("--tolerance=", options.tolerance)};
  if (!options.html.empty()) args.push_back("--html=" + options.html);
  if (!options.fault.empty()) args.push_back("--with-fault=" + options.fault);
  become_worker(args);
}

}  // namespace

void add_parity(CLI::App& app, Action& chosen) {
  CLI::App* verb =
      app.add_subcommand("parity", "whether a recipe's layout trains the model of one device");
  auto options = std::make_shared<Options>();
  add_recipe_options(verb, options->file, options->overrides);
  verb->add_option("--precision", options->precision, "in which both run")
      ->check(CLI::IsMember({"fp64", "fp32"}))
      ->capture_default_str();
  verb->add_option("--steps", options->steps, "optimizer steps that are compared")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--tolerance", options->tolerance,
                   "largest relative difference; default: 1e-6 in fp64, 1e-4 in fp32")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--html", options->html, "also write a page")->type_name("FILE");
  verb->add_option("--with-fault", options->fault, "switch on a seeded bug of docs/parity.md")
      ->type_name("NAME")
      ->group("");
  verb->footer(
      example("tutti parity recipes/gpt2_tiny.yaml --set parallel.engine=mesh --set "
              "parallel.workers=2 --set parallel.tensor=2"));
  verb->callback([options, &chosen] { chosen = [options]() -> int { return run(*options); }; });
}

}  // namespace tutti::cli
