// A DeviceMesh names the axes along which a job's ranks are arranged, row-major: the last axis
// varies fastest, so the axis that talks most comes last.
//
// An immutable value without communicators or I/O: a 4,096-rank mesh can be planned on a laptop;
// comm/ and collective/ open the groups that a mesh describes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct MeshAxis {
  std::string name;
  int size = 1;
};

class DeviceMesh {
 public:
  // ConfigError, naming every mistake at once, unless names are unique and not empty, sizes are at
  // least 1 and their product is `world_size`.
  DeviceMesh(std::vector<MeshAxis> axes, int world_size);

  int world_size() const { return world_size_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }

  bool has(std::string_view axis) const;

  // Ranks along `axis`. Here and below: ConfigError when the mesh has no such axis.
  int size(std::string_view axis) const;

  // The position of `rank` on `axis`, from 0.
  int coordinate(int rank, std::string_view axis) const;

  // The members of one communicator: the ranks that differ from `rank` on `axis` alone, in axis
  // order, `rank` included.
  std::vector<int> group(int rank, std::string_view axis) const;

  // "data 2 x tensor 4 (8 ranks)".
  std::string describe() const;

 private:
  struct Step {
    int size, stride;  // positions on an axis; ranks between two neighbours on it
  };
  Step find(std::string_view axis) const;

  std::vector<MeshAxis> axes_;
  int world_size_;
};

}  // namespace tutti
