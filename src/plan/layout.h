// Which rank does what: the recipe's degrees as a mesh, stages and rules. Pure values.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "mesh/device_mesh.h"
#include "plan/pipeline_schedule.h"
#include "recipe/check.h"
#include "recipe/recipe.h"

namespace tutti::plan {

// Layers [begin, end) of a stage; may be none.
struct StageLayers {
  std::int64_t begin = 0, end = 0;
};

// Of shared memory (comm/memory_group.h).
inline constexpr std::int64_t most_shm_workers = 64;

struct Layout {
  // Axes from the slowest to the fastest: pipeline, replica, shard, context, tensor. A rank's place
  // among the data ranks is shard * replicas + replica, whatever the mesh's order (it is not
  // row-major): so a shard's replicas hold neighbouring parts of it.
  DeviceMesh mesh;
  // The same ranks folded for experts: pipeline, expert_replica, expert, expert_tensor.
  DeviceMesh experts;
  PipelineSchedule schedule;                 // one rank, 1f1b, without a pipeline
  std::vector<StageLayers> stages;           // one a stage, in the model's order; all layers
  std::map<std::string, std::string> rules;  // logical axis -> mesh axis or "none", for all axes
  int data = 1, shard = 1, replica = 1;      // ranks; data = shard * replica; zero 0: shard is 1
  // Shards of the experts' state, among ranks of expert_replica: all of them, or with hybrid shards
  // as many of `shard` as divide them; zero 0: 1.
  int expert_shard = 1;

  // Whether experts are dealt over ranks, or cut over them.
  bool folds_experts() const { return experts.size("expert") * experts.size("expert_tensor") > 1; }
  int data_rank(int rank) const;
};

// The recipe by which one of parallel.islands trains between means: its share of workers and batch.
// Without islands the recipe itself.
recipe::Recipe island_of(const recipe::Recipe& recipe);

// Of one island, if there are some. ConfigError with every violation at once. A size of 0 in the
// model follows from the others (recipe.h). With model.from its sizes are not known here: put the
// folder's model in its place first, if the layout has a pipeline.
Layout make_layout(const recipe::Recipe& recipe);

// What forbids the layout, or is asked for in vain, each with the nearest values that make no new
// trouble. With model.from the rules on sizes are left out. `where` and `bad` as
// recipe::contradictions has them; that the data ranks divide the micro-batches is said there.
std::vector<Violation> layout_violations(const recipe::Recipe& recipe,
                                         const recipe::Where& where = {},
                                         const std::set<std::string>& bad = {});

// Logical axis -> mesh axis or "none": the default table, changed by parallel.rules. Words of it
// that make no sense are left out. A program's own model may have axes of its own.
std::map<std::string, std::string> layout_rules(const std::string& rules, bool own_model = false);

// `layers` dealt to `stages`, the first ones one more if they do not divide: the last one has the
// head.
std::vector<std::int64_t> even_cut(std::int64_t layers, std::int64_t stages);

}  // namespace tutti::plan
