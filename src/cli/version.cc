#include <iostream>

#include "base/version.h"
#include "cli/verbs.h"

namespace tutti::cli {

void add_version(CLI::App& app, Action& chosen) {
  CLI::App* verb = app.add_subcommand("version", "say which tutti this is");
  verb->footer(example("tutti version"));
  verb->callback([&chosen] {
    chosen = [] {
      std::cout << "tutti " << version << "\n";
      return 0;
    };
  });
}

}  // namespace tutti::cli
