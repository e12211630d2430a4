#include "parallel/mesh_groups.h"

namespace tutti::parallel {
namespace {

// Context ranks that exchange heads.
int ulysses_of(const recipe::Parallel& recipe) {
  if (recipe.context_kind == "ulysses") return static_cast<int>(recipe.context);
  return recipe.context_kind == "mixed" ? static_cast<int>(recipe.ulysses) : 1;
}

// The ranks that differ from `rank` in data alone, in the data ranks' order.
std::vector<int> data_members(const DeviceMesh& mesh, int rank) {
  std::vector<int> members;
  for (const int shard : mesh.group(rank, "shard"))
    for (const int replica : mesh.group(shard, "replica")) members.push_back(replica);
  return members;
}

}  // namespace

MeshGroups open_groups(const plan::Layout& layout, const recipe::Parallel& recipe,
                       std::shared_ptr<collective::Group> world) {
  const int rank = world->rank();
  const DeviceMesh& mesh = layout.mesh;
  MeshGroups groups;
  const auto open = [&](const std::vector<int>& members, const char* name) {
    return members.size() > 1 ? world->subgroup(members, name) : nullptr;
  };
  groups.data.data = open(data_members(mesh, rank), "data");
  if (recipe.zero == 0) {
    groups.data.replica = groups.data.data;
  } else {
    groups.data.shard = open(mesh.group(rank, "shard"), "shard");
    groups.data.replica = open(mesh.group(rank, "replica"), "replica");
  }
  groups.pipeline = open(mesh.group(rank, "pipeline"), "pipeline");
  groups.tensor = open(mesh.group(rank, "tensor"), "tensor");
  const std::vector<int> context = mesh.group(rank, "context");
  groups.context = open(context, "context");
  const int heads = ulysses_of(recipe), at = mesh.coordinate(rank, "context");
  std::vector<int> ring, ulysses;
  for (int c = 0; c < static_cast<int>(context.size()); ++c) {
    if (c % heads == at % heads) ring.push_back(context[static_cast<std::size_t>(c)]);
    if (c / heads == at / heads) ulysses.push_back(context[static_cast<std::size_t>(c)]);
  }
  groups.ring = open(ring, "ring");
  groups.ulysses = open(ulysses, "ulysses");
  groups.world = std::move(world);
  return groups;
}

}  // namespace tutti::parallel
