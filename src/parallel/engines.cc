#include "parallel/engines.h"

#include <map>

#include "base/error.h"
#include "base/text.h"
#include "parallel/islands.h"
#include "parallel/mesh_engine.h"
#include "plan/layout.h"
#include "recipe/fields.h"

namespace tutti::parallel {
namespace {

std::unique_ptr<Engine> make_mesh(const recipe::Recipe& recipe, Task& task,
                                  std::shared_ptr<collective::Group> world) {
  return std::make_unique<MeshEngine>(recipe, task, plan::make_layout(recipe), std::move(world));
}

std::map<std::string, EngineFactory>& factories() {
  static std::map<std::string, EngineFactory> all = {
      {"replicated", make_mesh}, {"sharded", make_mesh}, {"mesh", make_mesh}};
  return all;
}

}  // namespace

void register_engine(const std::string& name, EngineFactory factory) {
  factories()[name] = std::move(factory);
  recipe::add_engine(name);
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

void require_engine(const recipe::Recipe& recipe) {
  if (!factories().contains(recipe.parallel.engine))
    throw ConfigError({{"parallel.engine", "", recipe.parallel.engine,
                        "must be one of " + join(engine_names(), ", "), ""}});
}

std::unique_ptr<Engine> make_engine(const recipe::Recipe& recipe, Task& task,
                                    std::shared_ptr<collective::Group> world) {
  require_engine(recipe);
  const EngineFactory& make = factories().at(recipe.parallel.engine);
  if (recipe.parallel.local_steps > 0)
    return std::make_unique<Islands>(recipe, task, make, std::move(world));
  return make(recipe, task, std::move(world));
}

}  // namespace tutti::parallel
