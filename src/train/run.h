// A recipe becomes a trained model: what each worker of `tutti train` does.
#pragma once
#include "recipe/recipe.h"
#include "train/trainer.h"
#include "train/worker.h"

namespace tutti::train {

// One rank's part of the run in worker.folder; every rank of the job calls it.
Result run(const recipe::Recipe& recipe, const Worker& worker);

}  // namespace tutti::train
