// tutti checkpoint list | show | verify.
#include <iostream>
#include <memory>

#include "base/error.h"
#include "checkpoint/loader.h"
#include "cli/verbs.h"
#include "events/run_folder.h"

namespace tutti::cli {
namespace {

// A run's checkpoints, or the folder itself if it holds some.
fs::path checkpoints_of(const fs::path& path) {
  if (!fs::exists(path)) throw ConfigError({{"", path.string(), "", "does not exist", ""}});
  return fs::exists(path / "recipe.yaml") ? events::RunFolder(path).checkpoints() : path;
}

fs::path one_of(const fs::path& path) {
  if (fs::exists(path / "manifest.json")) return path;
  const auto found = checkpoint::latest(checkpoints_of(path));
  for (const std::string& refused : found.refused) std::cerr << refused << "\n";
  if (found.path.empty())
    throw ConfigError({{"", path.string(), "", "has no whole checkpoint", ""}});
  return found.path;
}

}  // namespace

void add_checkpoint(CLI::App& app, Action& chosen) {
  CLI::App* group = app.add_subcommand("checkpoint", "look at checkpoints");
  group->require_subcommand(0, 1);
  group->footer(example("tutti checkpoint list runs/shakespeare"));
  auto path = std::make_shared<std::string>();
  const auto add = [&](const char* name, const char* help,
                       const std::function<int(const fs::path&)>& action) {
    CLI::App* verb = group->add_subcommand(name, help);
    verb->add_option("PATH", *path, "a run's folder or a checkpoint's")->required();
    verb->footer(example(std::string("tutti checkpoint ") + name + " runs/shakespeare"));
    verb->callback([=, &chosen] { chosen = [=] { return action(*path); }; });
  };
  add("list", "the checkpoints of a run", [](const fs::path& p) {
    std::cout << checkpoint::list_text(checkpoints_of(p));
    return int{exit_ok};
  });
  add("show", "what a checkpoint holds (of a run: the newest)", [](const fs::path& p) {
    std::cout << checkpoint::show_text(one_of(p));
    return int{exit_ok};
  });
  add("verify", "read everything and check every checksum", [](const fs::path& p) {
    const auto [text, good] =
        checkpoint::verify_text(fs::exists(p / "manifest.json") ? p : checkpoints_of(p));
    std::cout << text;
    return int{good ? exit_ok : exit_world};
  });
}

}  // namespace tutti::cli
