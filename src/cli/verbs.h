// The verbs of `tutti`, one file each. add_X() adds X to the command line; where it is the verb
// that was typed, `chosen` becomes what main() then runs: it returns the exit code, and may throw.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::cli {

using Action = std::function<int()>;

void add_train(CLI::App& app, Action& chosen);
void add_resume(CLI::App& app, Action& chosen);
void add_join(CLI::App& app, Action& chosen);
void add_worker_verbs(CLI::App& app, Action& chosen);  // eval, generate, export
void add_tokenize(CLI::App& app, Action& chosen);
void add_tokenizer(CLI::App& app, Action& chosen);
void add_recipe(CLI::App& app, Action& chosen);
void add_layout(CLI::App& app, Action& chosen);
void add_parity(CLI::App& app, Action& chosen);
void add_checkpoint(CLI::App& app, Action& chosen);
void add_doctor(CLI::App& app, Action& chosen);
void add_doctor_run(CLI::App* doctor, Action& chosen);
void add_trace(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);
void add_version(CLI::App& app, Action& chosen);

// RECIPE and --set, of the verbs that look at a recipe. Both must outlive the parsing.
inline void add_recipe_options(CLI::App* verb, std::string& file,
                               std::vector<std::string>& overrides) {
  verb->add_option("RECIPE", file, "a YAML file")->required();
  verb->add_option_function<std::int64_t>(
          "--workers",
          [&overrides](std::int64_t workers) {
            overrides.push_back("parallel.workers=" + std::to_string(workers));
          },
          "processes; overrides parallel.workers")
      ->type_name("N");
  verb->add_option_function<std::vector<std::string>>(
          "--set",
          [&overrides](const std::vector<std::string>& more) {  // beside what --workers adds
            overrides.insert(overrides.end(), more.begin(), more.end());
          },
          "a.b=c: overrides a field")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all();
}

// What --help ends with; tests run it.
inline std::string example(const std::string& command) { return "Example:\n  " + command + "\n"; }

}  // namespace tutti::cli
