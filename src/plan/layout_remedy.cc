// The nearest legal values, by trying them: a value that mends one rule and breaks another is no
// remedy.
#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "plan/layout.h"
#include "plan/layout_rules.h"
#include "recipe/fields.h"

namespace tutti::plan {
namespace {

using recipe::Recipe;
using Names = std::vector<std::string>;
using Numbers = std::set<std::int64_t>;

Numbers divisors(std::int64_t number) {
  Numbers found;
  for (std::int64_t d = 1; d * d <= number; ++d)
    if (number % d == 0) found.insert({d, number / d});
  return found;
}

// The multiples of `unit` around `near`.
Numbers multiples(std::int64_t unit, std::int64_t near) {
  constexpr std::int64_t around = 4;
  Numbers found;
  for (std::int64_t k = near / unit - around; k <= near / unit + around; ++k)
    if (k > 0) found.insert(k * unit);
  return found;
}

Numbers numbers_for(const Recipe& r, const std::string& field) {
  const recipe::Parallel& p = r.parallel;
  const Sizes sizes(r);
  const std::int64_t sample = r.batch.micro * sizes.data;
  Numbers found;
  if (field == "parallel.zero") return {0, 1, 2, 3};
  if (field == "batch.micro") return divisors(r.batch.global);
  if (field == "batch.global") {
    found = multiples(sample, r.batch.global);
    found.merge(multiples(sample * p.pipeline, r.batch.global));
    found.merge(Numbers{2 * sample * p.pipeline});  // the least of dualpipe-v
  } else if (field == "parallel.workers") {
    found = multiples(recipe::model_ranks(p), p.workers);
    found.merge(multiples(recipe::model_ranks(p), most_shm_workers));
  } else if (field == "parallel.pipeline_chunks") {
    for (std::int64_t chunks = 1; chunks <= 16; ++chunks) found.insert(chunks);
  } else if (field == "parallel.ulysses") {
    found = divisors(p.context);
  } else {
    found = divisors(field == "parallel.shard" ? sizes.data : p.workers);
  }
  return found;
}

class Remedies {
 public:
  Remedies(const Finding& finding, const std::vector<Finding>& all, const Recipe& recipe)
      : recipe_(recipe) {
    for (const Finding& other : all)
      if (other.id != finding.id) allowed_.insert(other.id);
  }

  // The legal values of the trial.
  Names of(const Trial& trial) const {
    const recipe::Field& field = *recipe::find_field(trial.field);
    if (!trial.values.empty()) return those(field, trial.values);
    if (field.kind == recipe::Kind::choice) return those(field, field.choices);
    const std::int64_t now = std::stoll(field.get(recipe_));
    const Numbers numbers = numbers_for(recipe_, trial.field);
    Names found;
    const auto after = numbers.upper_bound(now);
    for (auto at = std::make_reverse_iterator(numbers.lower_bound(now)); at != numbers.rend(); ++at)
      if (found.empty() && legal(field, str(*at))) found.push_back(str(*at));
    const std::size_t below = found.size();
    for (auto at = after; at != numbers.end() && found.size() == below; ++at)
      if (legal(field, str(*at))) found.push_back(str(*at));
    return found;
  }

 private:
  Names those(const recipe::Field& field, const Names& values) const {
    Names found;
    for (const std::string& value : values)
      if (value != field.get(recipe_) && legal(field, value)) found.push_back(value);
    return found;
  }

  bool legal(const recipe::Field& field, const std::string& value) const {
    Recipe other = recipe_;
    if (!field.set(other, value)) return false;
    const std::vector<Finding> left = findings(other);
    return std::all_of(left.begin(), left.end(),
                       [&](const Finding& finding) { return allowed_.contains(finding.id); });
  }

  const Recipe& recipe_;
  std::set<std::string> allowed_;
};

}  // namespace

std::string remedy_for(const Finding& finding, const std::vector<Finding>& all,
                       const Recipe& recipe) {
  const Remedies remedies(finding, all, recipe);
  Names texts;
  std::size_t count = 0;
  for (const Trial& trial : finding.trials) {
    Names values = remedies.of(trial);
    for (std::string& value : values)
      if (value.empty()) value = "\"\"";
    count += values.size();
    if (!values.empty()) texts.push_back(trial.field + " = " + join(values, " or "));
  }
  if (count == 0) return finding.otherwise;
  return (count == 1 ? "the nearest is " : "nearest are ") + join(texts, ", or ");
}

}  // namespace tutti::plan
