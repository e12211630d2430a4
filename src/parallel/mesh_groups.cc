#include "parallel/mesh_groups.h"

#include <algorithm>
#include <functional>

namespace tutti::parallel {
namespace {

using Members = std::vector<int>;
using Open = std::function<std::shared_ptr<collective::Group>(const Members&, const char*)>;

// Context ranks that exchange heads.
int ulysses_of(const recipe::Parallel& recipe) {
  if (recipe.context_kind == "ulysses") return static_cast<int>(recipe.context);
  return recipe.context_kind == "mixed" ? static_cast<int>(recipe.ulysses) : 1;
}

// The ranks that differ from `rank` in data alone, a shard's replicas side by side.
Members data_members(const DeviceMesh& mesh, int rank) {
  Members members;
  for (const int shard : mesh.group(rank, "shard"))
    for (const int replica : mesh.group(shard, "replica")) members.push_back(replica);
  return members;
}

// The ranks that hold the same experts, likewise: neighbours in the mesh are of different shards.
Members expert_members(const plan::Layout& layout, int rank) {
  const Members members = layout.experts.group(rank, "expert_replica");
  Members ordered;
  for (int shard = 0; shard < layout.expert_shard; ++shard)
    for (std::size_t i = static_cast<std::size_t>(shard); i < members.size();
         i += static_cast<std::size_t>(layout.expert_shard))
      ordered.push_back(members[i]);
  return ordered;
}

// Member shard * replicas + replica of `members`.
DataRanks open_data(const Members& members, int shards, int rank, const Open& open) {
  DataRanks ranks;
  ranks.data = open(members, "data");
  if (shards == 1) {
    ranks.replica = ranks.data;
    return ranks;
  }
  const auto replicas = members.size() / static_cast<std::size_t>(shards);
  const auto at =
      static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  Members shard, replica;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i % replicas == at % replicas) shard.push_back(members[i]);
    if (i / replicas == at / replicas) replica.push_back(members[i]);
  }
  ranks.shard = open(shard, "shard");
  ranks.replica = open(replica, "replica");
  return ranks;
}

void open_context(const Members& context, int heads, int at, const Open& open, MeshGroups& groups) {
  groups.context = open(context, "context");
  groups.tokens = open(context, "tokens");
  Members ring, ulysses;
  for (int c = 0; c < static_cast<int>(context.size()); ++c) {
    if (c % heads == at % heads) ring.push_back(context[static_cast<std::size_t>(c)]);
    if (c / heads == at / heads) ulysses.push_back(context[static_cast<std::size_t>(c)]);
  }
  groups.ring = open(ring, "ring");
  groups.ulysses = open(ulysses, "ulysses");
}

}  // namespace

MeshGroups open_groups(const plan::Layout& layout, const recipe::Parallel& recipe,
                       std::shared_ptr<collective::Group> world) {
  const int rank = world->rank();
  const DeviceMesh& mesh = layout.mesh;
  MeshGroups groups;
  const Open open = [&](const Members& members, const char* name) {
    return members.size() > 1 ? world->subgroup(members, name) : nullptr;
  };
  groups.data = open_data(data_members(mesh, rank), layout.shard, rank, open);
  groups.pipeline = open(mesh.group(rank, "pipeline"), "pipeline");
  groups.tensor = open(mesh.group(rank, "tensor"), "tensor");
  open_context(mesh.group(rank, "context"), ulysses_of(recipe), mesh.coordinate(rank, "context"),
               open, groups);
  if (layout.folds_experts()) {
    groups.expert = open(layout.experts.group(rank, "expert"), "expert");
    groups.expert_tensor = open(layout.experts.group(rank, "expert_tensor"), "expert_tensor");
    groups.expert_replicas =
        open_data(expert_members(layout, rank), layout.expert_shard, rank, open);
  }
  groups.world = std::move(world);
  return groups;
}

}  // namespace tutti::parallel
