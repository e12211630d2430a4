#include "mesh/device_mesh.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "base/error.h"

namespace tutti {
namespace {

// Every mistake in the axes; the product is only judged when each size makes sense.
std::vector<Violation> mistakes_in(const std::vector<MeshAxis>& axes, int world_size) {
  std::vector<Violation> found;
  std::set<std::string_view> names;
  std::int64_t covered = 1;
  for (const auto& [name, size] : axes) {
    const std::string field = str("mesh.", name);
    if (name.empty()) found.push_back({"mesh", "", "", "every axis needs a name", ""});
    if (!names.insert(name).second) found.push_back({field, "", "", "appears twice", ""});
    if (size < 1) found.push_back({field, "", str(size), "must be at least 1", ""});
    // Held just above world_size, so that no product overflows.
    covered = std::min<std::int64_t>(covered * std::max(size, 1), std::int64_t{world_size} + 1);
  }
  if (found.empty() && covered != world_size)
    found.push_back({"mesh", "", "",
                     covered > world_size
                         ? str("the axes need more than the job's ", world_size, " ranks")
                         : str("the axes cover ", covered, " ranks; the job has ", world_size),
                     "let the product of the sizes be the number of workers"});
  return found;
}

}  // namespace

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, int world_size)
    : axes_(std::move(axes)), world_size_(world_size) {
  auto mistakes = mistakes_in(axes_, world_size);
  if (!mistakes.empty()) throw ConfigError(std::move(mistakes));
}

bool DeviceMesh::has(std::string_view name) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](auto& axis) { return axis.name == name; });
}

DeviceMesh::Step DeviceMesh::find(std::string_view name) const {
  int stride = 1;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    if (axis->name == name) return {axis->size, stride};
    stride *= axis->size;
  }
  throw ConfigError(str("the mesh ", describe(), " has no axis '", name, "'"));
}

int DeviceMesh::size(std::string_view axis) const { return find(axis).size; }

int DeviceMesh::coordinate(int rank, std::string_view axis) const {
  TUTTI_ASSERT(0 <= rank && rank < world_size_, "rank ", rank, " of ", world_size_);
  const auto [size, stride] = find(axis);
  return rank / stride % size;
}

std::vector<int> DeviceMesh::group(int rank, std::string_view axis) const {
  const auto [size, stride] = find(axis);
  const int first = rank - coordinate(rank, axis) * stride;
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

std::string DeviceMesh::describe() const {
  std::string text;
  for (const auto& [name, size] : axes_) text += str(text.empty() ? "" : " x ", name, " ", size);
  return str(text.empty() ? "no axes" : text, " (", world_size_,
             world_size_ == 1 ? " rank)" : " ranks)");
}

}  // namespace tutti
