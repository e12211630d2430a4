#include "plan/micro_batch.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "plan/layout_rules.h"
#include "plan/memory.h"

namespace tutti::plan {
namespace {

using recipe::Recipe;

// From the largest on.
std::set<std::int64_t, std::greater<>> divisors(std::int64_t number) {
  std::set<std::int64_t, std::greater<>> found;
  for (std::int64_t d = 1; d * d <= number; ++d)
    if (number % d == 0) found.insert({d, number / d});
  return found;
}

// Layers of the whole time, that recomputation adds to a place of the pipeline.
double again(const std::vector<recipe::Recompute>& kinds, const Layout& layout, int place) {
  double added = 0, layers = 0;
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    if (layout.schedule.rank_of[s] != place) continue;
    for (std::int64_t i = layout.stages[s].begin; i < layout.stages[s].end; ++i, ++layers) {
      const auto kind = kinds[static_cast<std::size_t>(i)];
      if (kind == recipe::Recompute::full) added += 1 / 3.;
      if (kind == recipe::Recompute::selective) added += 1 / 30.;
    }
  }
  return layers > 0 ? added / layers : 0;
}

struct Least {
  std::int64_t samples = 0;
  double bytes = INFINITY;
};

ConfigError nothing_fits(const Recipe& recipe, const Least& least) {
  if (least.samples == 0)
    return ConfigError({{"batch.micro", "", "auto", "no micro-batch fits this layout",
                         "set it to a number to see why"}});
  const auto bytes = static_cast<std::int64_t>(std::ceil(least.bytes));
  return ConfigError({{"memory_budget", "", str(recipe.memory_budget),
                       str("is too little: with batch.micro = ", least.samples,
                           recipe.recompute == "auto" ? " and all recomputation that helps" : "",
                           " the fullest worker would hold about ", bytes, " bytes"),
                       str("set it to at least ", bytes, ", or spread over more workers")}});
}

std::string why(const Recipe& chosen, double bytes, std::int64_t larger) {
  std::string text = str("batch.micro: auto is ", chosen.batch.micro, ": about ",
                         human_bytes(bytes), " on the fullest worker, memory_budget = ",
                         human_bytes(static_cast<double>(chosen.memory_budget)));
  if (larger > 0) text += str("; ", larger, " would not fit");
  return text;
}

}  // namespace

double relative_time(const Recipe& recipe, const Layout& layout) {
  constexpr double pass = 32;  // tokens
  const auto kinds = recompute_of(recipe, layout);
  double most = 0;
  for (int place = 0; place < layout.mesh.size("pipeline"); ++place)
    most = std::max(most, again(kinds, layout, place));
  const double sequence =
      static_cast<double>(recipe.data.sequence) / static_cast<double>(recipe.parallel.context);
  const double sample = 1 + most, micro = static_cast<double>(recipe.batch.micro);
  return static_cast<double>(recipe.batch.global) * (sample + pass / (micro * sequence));
}

MicroBatch choose_micro_batch(const Recipe& recipe) {
  Recipe candidate = recipe, chosen = recipe;
  Least least;
  double best = INFINITY;
  std::int64_t larger = 0;  // the least that the layout takes and the budget does not
  for (const std::int64_t samples : divisors(recipe.batch.global)) {
    candidate.batch.micro = samples;
    if (!findings(candidate).empty()) continue;
    const Layout layout = make_layout(candidate);
    const double bytes = least_budget(candidate, layout);
    if (bytes < least.bytes) least = {samples, bytes};
    if (bytes > static_cast<double>(recipe.memory_budget)) {
      if (std::isinf(best)) larger = samples;
      continue;
    }
    const double time = relative_time(candidate, layout);
    if (time < best) {
      best = time;
      chosen = candidate;
    }
    // A smaller one is slower than this, if this one recomputes nothing that it would not.
    if (recipe.recompute != "auto") break;
  }
  if (std::isinf(best)) throw nothing_fits(recipe, least);
  MicroBatch found;
  found.samples = chosen.batch.micro;
  const Layout layout = make_layout(chosen);
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
    found.bytes = std::max(found.bytes, memory_of(chosen, layout, rank).total());
  found.why = why(chosen, found.bytes, larger);
  return found;
}

}  // namespace tutti::plan
