// The rules on parallel.compress.
#include "base/error.h"
#include "plan/layout.h"
#include "plan/layout_rules.h"

namespace tutti::plan {

void check_compress(const recipe::Recipe& recipe, std::vector<Finding>& found) {
  const recipe::Parallel& p = recipe.parallel;
  const std::string field = "parallel.compress";
  if (p.compress == "none") return;
  const auto refuse = [&](const std::string& id, const std::string& other, const std::string& rule,
                          std::vector<Trial> trials, const std::string& otherwise) {
    trials.push_back({field, {"none"}});
    found.push_back({"compress " + id, {field, other}, p.compress, rule, trials, otherwise});
  };
  if (p.local_steps > 0)
    refuse("islands", "parallel.local_steps",
           "is not made for islands, which seldom send: optimizer.outer_type is theirs", {},
           "set it to none");
  if (Sizes(island_of(recipe)).data == 1) return;
  if (recipe.reproducible)
    refuse("bits", "reproducible",
           "needs reproducible = off: what is sent depends on which rank computed what",
           {{"reproducible", {"off"}}}, "set reproducible: off");
  if (p.zero > 1)
    refuse("zero", "parallel.zero",
           str("needs parallel.zero = 0 or 1: with ", p.zero,
               " no rank adds up its own micro-batches"),
           {{"parallel.zero", {"0", "1"}}}, "set parallel.zero: 1");
  if (p.expert > 1 || p.expert_tensor > 1)
    refuse("experts", p.expert > 1 ? "parallel.expert" : "parallel.expert_tensor",
           "is not made for experts that are dealt over ranks", {}, "set it to none");
  if (p.compress == "sign" && p.compress_after == 0 && recipe.optimizer.name != "sgd")
    refuse("sign", "parallel.compress_after",
           str("needs parallel.compress_after above 0 with ", recipe.optimizer.name,
               ", whose second moment is learnt from plain sums and then kept"),
           {{"parallel.compress_after", {"100"}}, {"optimizer.name", {"sgd"}}},
           "set parallel.compress_after to a tenth of the run");
}

}  // namespace tutti::plan
