#include "plan/layout.h"

#include <numeric>

#include "plan/layout_rules.h"

namespace tutti::plan {
namespace {

using recipe::Recipe;

std::vector<Violation> told(const std::vector<Finding>& all, const Recipe& recipe,
                            const recipe::Where& where, const std::set<std::string>& bad,
                            bool also_silent) {
  std::vector<Violation> violations;
  for (const Finding& finding : all) {
    std::string place;
    bool leave = finding.silent && !also_silent;
    for (const std::string& field : finding.fields) {
      leave |= bad.contains(field);
      if (place.empty() && where) place = where(field);
    }
    if (!leave)
      violations.push_back({finding.fields[0], place, finding.value, finding.rule,
                            remedy_for(finding, all, recipe)});
  }
  return violations;
}

std::vector<StageLayers> stages_of(const Recipe& recipe) {
  const recipe::Parallel& p = recipe.parallel;
  std::vector<std::int64_t> counts = layers_of_cut(p.pipeline_cut);
  if (counts.empty()) counts = even_cut(recipe.model.layers, p.pipeline * p.pipeline_chunks);
  std::vector<StageLayers> stages;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    stages.push_back({begin, begin + count});
    begin += count;
  }
  return stages;
}

}  // namespace

int Layout::data_rank(int rank) const {
  return mesh.coordinate(rank, "shard") * replica + mesh.coordinate(rank, "replica");
}

std::vector<std::int64_t> even_cut(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> counts;
  for (std::int64_t s = 0; s < stages; ++s)
    counts.push_back(layers / stages + (s < layers % stages ? 1 : 0));
  return counts;
}

Recipe island_of(const Recipe& recipe) {
  Recipe island = recipe;
  const std::int64_t islands = recipe.parallel.islands;
  if (islands > 1 && recipe.parallel.workers % islands == 0) island.parallel.workers /= islands;
  if (islands > 1 && recipe.batch.global % islands == 0) island.batch.global /= islands;
  island.parallel.islands = 1;
  island.parallel.local_steps = 0;
  island.parallel.fragments = 1;
  island.parallel.overlap_steps = 0;
  return island;
}

std::vector<Violation> layout_violations(const Recipe& recipe, const recipe::Where& where,
                                         const std::set<std::string>& bad) {
  if (recipe.batch.micro > 0) return told(findings(recipe), recipe, where, bad, false);
  Recipe of_one = recipe;  // auto: what forbids one sample forbids more, but for too many passes
  of_one.batch.micro = 1;
  std::vector<Finding> found = findings(of_one);
  std::erase_if(found, [](const Finding& finding) { return finding.id == "passes"; });
  return told(found, of_one, where, bad, false);
}

Layout make_layout(const Recipe& asked) {
  const Recipe recipe = island_of(asked);
  TUTTI_ASSERT(recipe.batch.micro > 0, "batch.micro: auto has not been chosen yet");
  const auto found = findings(asked);
  if (!found.empty()) throw ConfigError(told(found, asked, {}, {}, true));
  const recipe::Parallel& p = recipe.parallel;
  TUTTI_ASSERT(recipe.model.from.empty() || p.pipeline == 1,
               "the layers of model.from are not known");
  const Sizes sizes(recipe);
  const auto size = [](std::int64_t ranks) { return static_cast<int>(ranks); };
  const int workers = size(p.workers), data = size(sizes.data);
  const int shard = p.zero == 0 ? 1 : p.shard == 0 ? data : size(p.shard);
  const std::int64_t folded = p.pipeline * p.expert * p.expert_tensor;
  const int replicas = size(p.workers / folded);  // of an expert
  return {DeviceMesh({{"pipeline", size(p.pipeline)},
                      {"replica", data / shard},
                      {"shard", shard},
                      {"context", size(p.context)},
                      {"tensor", size(p.tensor)}},
                     workers),
          DeviceMesh({{"pipeline", size(p.pipeline)},
                      {"expert_replica", replicas},
                      {"expert", size(p.expert)},
                      {"expert_tensor", size(p.expert_tensor)}},
                     workers),
          p.pipeline == 1
              ? make_pipeline_schedule("1f1b", 1, 1, size(sizes.micro_batches))
              : make_pipeline_schedule(p.pipeline_schedule, size(p.pipeline),
                                       size(p.pipeline_chunks), size(sizes.micro_batches)),
          stages_of(recipe),
          layout_rules(p.rules, recipe.model.own),
          data,
          shard,
          data / shard,
          p.zero == 0    ? 1
          : p.shard == 0 ? replicas
                         : std::gcd(replicas, shard)};
}

}  // namespace tutti::plan
