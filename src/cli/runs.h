// What `train` and `resume` share: workers launched over a run folder, a live view, the summary.
#pragma once
#include "events/run_folder.h"
#include "recipe/recipe.h"

namespace tutti::cli {

enum class Show { automatic, quiet, json };

// Runs the recipe that lies in the folder; returns the exit code.
int launch_run(const events::RunFolder& run, const recipe::Recipe& recipe, bool resume, Show show);

}  // namespace tutti::cli
