// The groups of ranks that a layout asks for, opened from the world.
#pragma once
#include <memory>

#include "collective/group.h"
#include "parallel/context.h"
#include "parallel/stage_parameters.h"
#include "plan/layout.h"
#include "recipe/recipe.h"

namespace tutti::parallel {

struct MeshGroups {
  std::shared_ptr<collective::Group> world;
  // Null where the axis has one rank.
  DataRanks data;
  std::shared_ptr<collective::Group> pipeline, tensor, context;
  // The context axis again, for gradients: their sums go on while a pass uses the other.
  std::shared_ptr<collective::Group> tokens;
  // The context axis again, for attention: rank = ring * (ranks of ulysses) + ulysses.
  std::shared_ptr<collective::Group> ring, ulysses;
  // The stage's ranks again, for experts: those that share them out, and those that hold the same.
  std::shared_ptr<collective::Group> expert, expert_tensor;
  DataRanks expert_replicas;

  static int size_of(const std::shared_ptr<collective::Group>& g) { return g ? g->size() : 1; }
  static int rank_of(const std::shared_ptr<collective::Group>& g) { return g ? g->rank() : 0; }
};

// Collective over `world`. With zero 0, all data ranks are replicas.
MeshGroups open_groups(const plan::Layout& layout, const recipe::Parallel& recipe,
                       std::shared_ptr<collective::Group> world);

}  // namespace tutti::parallel
