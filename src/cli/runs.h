// What `train` and `resume` share: workers launched over a run folder, a live view, the summary.
#pragma once
#include "events/run_folder.h"
#include "recipe/recipe.h"

namespace tutti::cli {

enum class Show { automatic, quiet, json };

// This host among those that share a run; 1: it has the run alone.
struct Hosts {
  int hosts = 1;
  std::string address;  // by which the others reach it
};

// Runs the recipe that lies in the folder, or the first host's share of it; returns the exit code.
int launch_run(const events::RunFolder& run, const recipe::Recipe& recipe, bool resume, Show show,
               const Hosts& hosts = {});

// Runs the share of host `host` (from 1 on) of what the first host launches; the exit code.
int join_run(const fs::path& folder, int host, const std::string& address, double timeout);

}  // namespace tutti::cli
