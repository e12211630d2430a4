// What layout_check.cc finds and layout_remedy.cc finds a way out of.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace tutti::plan {

// A field that could be changed instead. Without values: all that make sense for it.
struct Trial {
  std::string field;
  std::vector<std::string> values = {};
};

struct Finding {
  std::string id;                   // of the rule; for one field it is found at most once
  std::vector<std::string> fields;  // that it looks at, the one to blame first
  std::string value;                // "": nothing to show; the remedies alone use a silent one
  std::string rule;
  std::vector<Trial> trials;
  std::string otherwise;  // the remedy when no single field helps
  bool silent = false;    // another module says it
};

// Every rule that the recipe breaks.
std::vector<Finding> findings(const recipe::Recipe& recipe);

// The nearest values by which the finding goes and no other comes:
// "nearest are parallel.tensor = 2 or 4, or parallel.workers = 6".
std::string remedy_for(const Finding& finding, const std::vector<Finding>& all,
                       const recipe::Recipe& recipe);

// One word of parallel.rules: "mlp=none".
struct AxisRule {
  std::string word, axis, onto;  // axis empty: not of that form
};
std::vector<AxisRule> axis_rules(const std::string& rules);

// Of findings(): those of parallel.rules.
void check_rules(const recipe::Recipe& recipe, std::vector<Finding>& found);
// Of findings(): those of islands, of the whole recipe (all others judge one island's).
void check_islands(const recipe::Recipe& recipe, std::vector<Finding>& found);
// Of findings(): those of parallel.compress.
void check_compress(const recipe::Recipe& recipe, std::vector<Finding>& found);

// parallel.pipeline_cut; empty for "even".
std::vector<std::int64_t> layers_of_cut(const std::string& cut);

// The sizes that follow, and what a layout makes of the workers.
struct Sizes {
  explicit Sizes(const recipe::Recipe& recipe);
  bool layers_known;  // without model.from
  bool known;         // and the model is no program's own
  std::int64_t kv_heads, mlp, expert_mlp;
  std::int64_t vocab;          // 0: not known
  bool fits;                   // model ranks divide the workers
  std::int64_t data;           // ranks, if it fits
  std::int64_t micro_batches;  // of a data rank, if its number divides theirs; else 0
};

}  // namespace tutti::plan
