// How one tensor lies on a mesh: per mesh axis, whether ranks hold copies, slices or addends.
// Checkpoint, optimiser, norm and export all read it; no module keeps its own idea of who owns
// what.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "mesh/device_mesh.h"

namespace tutti {

struct Placement {
  enum class Kind {
    replicate,  // every rank of the axis holds the same values
    shard,      // each rank holds a contiguous slice of dimension `dim`
    partial,    // the value is the sum over the ranks of the axis
  };
  Kind kind = Kind::replicate;
  int dim = 0;  // of shard only

  bool operator==(const Placement&) const = default;

  static Placement replicate() { return {}; }
  static Placement shard(int dim) { return {Kind::shard, dim}; }
  static Placement partial() { return {Kind::partial, 0}; }
};

// One entry a mesh axis, in the mesh's order.
using Placements = std::vector<Placement>;

// Slice `index` of `length` elements cut in `parts`: ceil(length / parts) each, the last ones
// shorter or empty. {begin, size}.
struct Slice {
  std::int64_t begin, size;
  bool operator==(const Slice&) const = default;
};
Slice slice_of(std::int64_t length, int parts, int index);

// The indices that `rank` holds of a tensor of global `shape`. Axes cut from the first to the last:
// a later axis that shards the same dimension cuts the slice that an earlier one left.
// ConfigError when there is not one placement an axis or a shard's dimension does not exist.
Box box_of(const std::vector<std::int64_t>& shape, const Placements& placements,
           const DeviceMesh& mesh, int rank);

// Whether `rank` writes its box when exactly one of the ranks that hold the same indices may: it
// lies at coordinate 0 on every axis that replicates. Partial values have no owner: ConfigError.
bool is_owner(const Placements& placements, const DeviceMesh& mesh, int rank);

// "data: Replicate, tensor: Shard(0)".
std::string to_text(const Placements& placements, const DeviceMesh& mesh);

}  // namespace tutti
