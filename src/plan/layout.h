// Which rank does what: the recipe's degrees as a mesh, stages and rules. Pure values.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "mesh/device_mesh.h"
#include "plan/pipeline_schedule.h"
#include "recipe/recipe.h"

namespace tutti::plan {

// Layers [begin, end) of a stage.
struct StageLayers {
  std::int64_t begin = 0, end = 0;
};

struct Layout {
  // Axes from the slowest to the fastest: pipeline, replica, shard, context, tensor. A rank's place
  // among the data ranks is shard * replicas + replica, whatever the mesh's order: so a shard's
  // replicas hold neighbouring parts of it.
  DeviceMesh mesh;
  // The same ranks folded for experts: pipeline, expert_replica, expert, expert_tensor.
  DeviceMesh experts;
  PipelineSchedule schedule;                 // one rank, 1f1b, without a pipeline
  std::vector<StageLayers> stages;           // one a stage
  std::map<std::string, std::string> rules;  // logical axis -> mesh axis or "none"
  int data = 1, shard = 1, replica = 1;      // ranks
};

// ConfigError with every violation at once.
Layout make_layout(const recipe::Recipe& recipe);
std::vector<Violation> layout_violations(const recipe::Recipe& recipe);

}  // namespace tutti::plan
