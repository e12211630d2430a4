#include "mesh/placement.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {
namespace {

void check(const Placements& placements, const DeviceMesh& mesh) {
  if (placements.size() != mesh.axes().size())
    throw ConfigError(str(placements.size(), " placements for the ", mesh.axes().size(),
                          " axes of the mesh ", mesh.describe()));
}

}  // namespace

Slice slice_of(std::int64_t length, int parts, int index) {
  TUTTI_ASSERT(parts > 0 && 0 <= index && index < parts, index, " of ", parts);
  const std::int64_t each = (length + parts - 1) / parts;
  const std::int64_t begin = std::min(length, each * index);
  return {begin, std::min(length, begin + each) - begin};
}

Box box_of(const std::vector<std::int64_t>& shape, const Placements& placements,
           const DeviceMesh& mesh, int rank) {
  check(placements, mesh);
  Box box = whole(shape);
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].kind != Placement::Kind::shard) continue;
    const auto& axis = mesh.axes()[a];
    const int dim = placements[a].dim;
    if (dim < 0 || dim >= static_cast<int>(shape.size()))
      throw ConfigError(str("axis '", axis.name, "' shards dimension ", dim, " of a tensor with ",
                            shape.size(), " dimensions"));
    const auto d = static_cast<std::size_t>(dim);
    const Slice slice = slice_of(box.size[d], axis.size, mesh.coordinate(rank, axis.name));
    box.offset[d] += slice.begin;
    box.size[d] = slice.size;
  }
  return box;
}

bool is_owner(const Placements& placements, const DeviceMesh& mesh, int rank) {
  check(placements, mesh);
  bool owner = true;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    const auto& axis = mesh.axes()[a];
    if (placements[a].kind == Placement::Kind::partial)
      throw ConfigError(
          str("a value that is Partial over '", axis.name, "' has no owner; reduce it first"));
    if (placements[a].kind == Placement::Kind::replicate)
      owner = owner && mesh.coordinate(rank, axis.name) == 0;
  }
  return owner;
}

std::string to_text(const Placements& placements, const DeviceMesh& mesh) {
  check(placements, mesh);
  std::string text;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    const auto& [kind, dim] = placements[a];
    text += str(a ? ", " : "", mesh.axes()[a].name, ": ");
    text += kind == Placement::Kind::shard       ? str("Shard(", dim, ")")
            : kind == Placement::Kind::replicate ? "Replicate"
                                                 : "Partial";
  }
  return text;
}

}  // namespace tutti
