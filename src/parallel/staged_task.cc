#include "parallel/staged_task.h"

#include <set>

#include "base/error.h"
#include "base/text.h"
#include "plan/layout_rules.h"

namespace tutti::parallel {

void require_spreadable(const recipe::Recipe& recipe, const Task& task) {
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

}  // namespace tutti::parallel
