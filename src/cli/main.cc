// `tutti`: launches runs, and does what needs no tensors by itself.
#include <cstdio>
#include <iostream>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/verbs.h"

namespace tutti::cli {
namespace {

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

// The app of the innermost verb that was typed.
const CLI::App& innermost(const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  return verbs.empty() ? app : innermost(*verbs.back());
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

// "unknown option --worker; did you mean --workers?"
std::string explain_unknown(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  const bool flag = word.size() > 1 && word[0] == '-';
  if (flag) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  } else {
    known = verb_names(app);
  }
  const char* kind = flag ? "unknown option " : known.empty() ? "unexpected " : "unknown verb ";
  const std::string near = nearest(word.substr(0, word.find('=')), known);
  std::string text = kind + word;
  if (!near.empty()) return text + "; did you mean " + near + "?";
  return known.empty() || flag ? text : text + "; there are: " + join(known, " ");
}

int explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& verb = innermost(app);
  std::vector<std::string> unknown = verb.remaining();
  if (unknown.empty()) unknown = app.remaining();
  if (unknown.empty()) {
    std::cerr << "tutti: " << error.what() << "\n";
  } else {
    std::cerr << "tutti: " << explain_unknown(verb, unknown.front()) << "\n";
  }
  std::cerr << "See " << path_of(verb) << " --help\n";
  return exit_config;
}

int run(int argc, char** argv) {
  CLI::App app("Trains neural networks on many processes.", "tutti");
  app.require_subcommand(0, 1);
  bool verbose = false;
  app.add_flag("--verbose", verbose, "tell how things are done, on standard error");
  app.footer(example("tutti train recipes/shakespeare.yaml"));
  Action chosen;
  for (auto add :
       {add_train, add_resume, add_join, add_worker_verbs, add_tokenize, add_tokenizer, add_recipe,
        add_layout, add_parity, add_checkpoint, add_doctor, add_trace, add_bench, add_version}) {
    add(app, chosen);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return explain(app, error);
  }
  set_log_level(verbose ? LogLevel::debug : LogLevel::info);
  if (!chosen) {
    std::cerr << innermost(app).help("", CLI::AppFormatMode::Normal);
    return exit_config;
  }
  return chosen();
}

}  // namespace
}  // namespace tutti::cli

int main(int argc, char** argv) {
  using namespace tutti;
  try {
    const int code = cli::run(argc, argv);
    check_standard_output();
    return code;
  } catch (const ConfigError& error) {
    std::cerr << "tutti: " << error.what() << "\n";
    return exit_config;
  } catch (const WorldError& error) {
    std::cerr << "tutti: " << error.what() << "\n";
    return exit_world;
  } catch (const Interrupted&) {
    return exit_interrupted;
  } catch (const std::exception& error) {
    std::cerr << "tutti: bug: " << error.what() << "\n";
    return exit_bug;
  }
}
