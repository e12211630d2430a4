// batch.micro: auto of a recipe that a verb has read.
#pragma once
#include "recipe/recipe.h"

namespace tutti::cli {

// Replaces it by what plan/micro_batch.h chooses and says on stderr what and why; a recipe with a
// number is left alone. `tell`: whether to say it. ConfigError if none fits.
void choose_micro_batch(recipe::Recipe& recipe, bool tell = true);

}  // namespace tutti::cli
