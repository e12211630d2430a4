// An engine's state to and from a checkpoint, piece by piece, whatever the layouts of the two.
#pragma once
#include <vector>

#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "parallel/engine.h"

namespace tutti::train {

// What this rank hands to Saver::save; valid as long as the engine's state.
std::vector<checkpoint::TensorView> views_of(const std::vector<parallel::StateTensor>& state);

// Reads the pieces of this rank and tells the engine. Moments that are stored in another precision
// than they are kept in (optimizer.state) are rounded to the nearest. What data ranks have not sent
// (parallel/reducer.h) goes over to whatever data ranks there are now, sum for sum; what else such
// sums carry is taken where it fits. ConfigError if the checkpoint is another model's. All ranks
// call it.
void read_state(const checkpoint::Loader& loader, parallel::Engine& engine);

}  // namespace tutti::train
