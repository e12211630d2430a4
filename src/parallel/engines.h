// Engines by name: what `parallel.engine` of a recipe chooses from.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/group.h"
#include "parallel/engine.h"
#include "recipe/recipe.h"

namespace tutti::parallel {

using EngineFactory = std::function<std::unique_ptr<Engine>(
    const recipe::Recipe& recipe, Task& task, std::shared_ptr<collective::Group> world)>;

// Makes `parallel.engine: NAME` legal in the recipes of this program. Before main()'s first recipe
// is read; replaces an engine of the same name.
void register_engine(const std::string& name, EngineFactory factory);
std::vector<std::string> engine_names();

// ConfigError for an unknown name, which lists the known ones.
void require_engine(const recipe::Recipe& recipe);

// Collective over `world`. ConfigError for an unknown name or a layout that is none.
std::unique_ptr<Engine> make_engine(const recipe::Recipe& recipe, Task& task,
                                    std::shared_ptr<collective::Group> world);

}  // namespace tutti::parallel
