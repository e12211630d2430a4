#include "parallel/engines.h"

#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "parallel/mesh_engine.h"
#include "parallel/staged_task.h"
#include "plan/layout.h"
#include "plan/layout_rules.h"
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

void require_spreadable(const recipe::Recipe& recipe, Task& task) {
  const recipe::Parallel& p = recipe.parallel;
  std::vector<Violation> wrong;
  const auto* staged = dynamic_cast<const StagedTask*>(&task);
  const std::pair<const char*, std::int64_t> degrees[] = {{"tensor", p.tensor},
                                                          {"context", p.context},
                                                          {"pipeline", p.pipeline},
                                                          {"expert", p.expert},
                                                          {"expert_tensor", p.expert_tensor}};
  for (const auto& [name, ranks] : degrees)
    if (!staged && ranks > 1)
      wrong.push_back({str("parallel.", name), "", str(ranks),
                       "must be 1: the task is no parallel::StagedTask, so only its data can be "
                       "spread",
                       ""});
  if (staged && recipe.model.own) {
    std::set<std::string> axes;
    for (const auto& [parameter, names] : staged->axes().of)
      axes.insert(names.begin(), names.end());
    for (const plan::AxisRule& rule : plan::axis_rules(p.rules))
      if (!rule.axis.empty() && !axes.contains(rule.axis))
        wrong.push_back({"parallel.rules", "", rule.word,
                         "names no axis of the task: those are " +
                             join(std::vector<std::string>(axes.begin(), axes.end()), ", "),
                         ""});
  }
  if (!wrong.empty()) throw ConfigError(wrong);
}

std::unique_ptr<Engine> make_engine(const recipe::Recipe& recipe, Task& task,
                                    std::shared_ptr<collective::Group> world) {
  require_engine(recipe);
  return factories().at(recipe.parallel.engine)(recipe, task, std::move(world));
}

}  // namespace tutti::parallel
