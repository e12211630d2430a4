// What `tutti layout show` prints: where each parameter lies and which collectives a step has.
#pragma once
#include <string>

#include "comm/cost_table.h"
#include "recipe/recipe.h"

namespace tutti::train {

// Trains one step of zeros in this process, threads as ranks, and tells what rank 0 and its peers
// did. `vocab` is the tokenizer's. With `costs`, also how long its collectives should take.
// ConfigError if the recipe has no such layout.
std::string layout_text(const recipe::Recipe& recipe, std::int64_t vocab,
                        const comm::CostTable* costs = nullptr);

}  // namespace tutti::train
