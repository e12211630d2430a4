#include "parallel/cut.h"

#include <algorithm>

#include "base/error.h"
#include "mesh/placement.h"

namespace tutti::parallel {
namespace {

bool on_tensor_axis(const std::map<std::string, std::string>& rules, const std::string& axis) {
  const auto rule = rules.find(axis);
  return rule != rules.end() && rule->second == "tensor";
}

bool folds(const std::vector<std::string>& axes, const CutRanks& size) {
  return size.expert * size.expert_tensor > 1 &&
         std::find(axes.begin(), axes.end(), "expert") != axes.end();
}

Cut fold(Cut cut, const std::vector<std::string>& axes, const CutRanks& size,
         const CutRanks& index) {
  cut.folded = true;
  const auto narrow = [&](std::size_t d, int ranks, int rank) {
    const Slice slice = slice_of(cut.shape[d], ranks, rank);
    cut.boxes[0].offset[d] = slice.begin;
    cut.boxes[0].size[d] = slice.size;
  };
  for (std::size_t d = 0; d < axes.size(); ++d) {
    if (axes[d] == "expert") narrow(d, size.expert, index.expert);
    if (axes[d] == "mlp") narrow(d, size.expert_tensor, index.expert_tensor);
  }
  return cut;
}

Cut cut_along(Cut cut, int dim, const nn::Grain& grain, int size, int index) {
  const auto d = static_cast<std::size_t>(dim);
  const std::int64_t part = cut.shape[d] / grain.parts;
  TUTTI_ASSERT(part * grain.parts == cut.shape[d] && part % grain.unit == 0, cut.name,
               ": its axis is no multiple of its grain");
  const Slice slice = slice_of(part / grain.unit, size, index);
  cut.type = nn::Type::shard(dim);
  cut.dim = dim;
  cut.part = {slice.begin * grain.unit, slice.size * grain.unit};
  cut.boxes.clear();
  for (int p = 0; p < grain.parts; ++p) {
    Box box = whole(cut.shape);
    box.offset[d] = p * part + cut.part.begin;
    box.size[d] = cut.part.size;
    cut.boxes.push_back(std::move(box));
  }
  return cut;
}

}  // namespace

std::vector<std::int64_t> Cut::local_shape() const {
  std::vector<std::int64_t> local = boxes[0].size;
  for (std::size_t i = 1; i < boxes.size(); ++i)
    local[static_cast<std::size_t>(dim)] += boxes[i].size[static_cast<std::size_t>(dim)];
  return local;
}

int parts_of(const Cut& cut, const CutRanks& size) {
  if (cut.folded) return size.expert * size.expert_tensor;
  return cut.type.kind == nn::Type::Kind::shard ? size.tensor : 1;
}

int part_of(const Cut& cut, const CutRanks& size, const CutRanks& index) {
  if (cut.folded) return index.expert * size.expert_tensor + index.expert_tensor;
  return cut.type.kind == nn::Type::Kind::shard ? index.tensor : 0;
}

CutRanks holder_of(int part, const CutRanks& size) {
  return {std::min(part, size.tensor - 1), std::min(part / size.expert_tensor, size.expert - 1),
          part % size.expert_tensor};
}

std::vector<Cut> cut_parameters(
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& parameters,
    const Axes& axes, const std::map<std::string, std::string>& rules, const CutRanks& size,
    const CutRanks& index) {
  std::vector<Cut> cuts;
  for (const auto& [name, shape] : parameters) {
    Cut cut{name, shape, {}, 0, {whole(shape)}, {0, shape.empty() ? 1 : shape[0]}};
    const auto named = axes.of.find(name);
    if (named != axes.of.end() && folds(named->second, size)) {
      cuts.push_back(fold(std::move(cut), named->second, size, index));
      continue;
    }
    for (std::size_t d = 0; size.tensor > 1 && named != axes.of.end() && d < shape.size(); ++d) {
      const std::string& axis = named->second[d];
      if (!on_tensor_axis(rules, axis)) continue;
      if (cut.type.kind == nn::Type::Kind::shard)
        throw ConfigError({{"parallel.rules", "", axis + ": tensor",
                            str("would cut two dimensions of ", name, " on the tensor axis"),
                            str("set ", axis, ": none")}});
      const auto grain = axes.grain.find(axis);
      cut = cut_along(std::move(cut), static_cast<int>(d),
                      grain == axes.grain.end() ? nn::Grain{} : grain->second, size.tensor,
                      index.tensor);
    }
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

torch::Tensor box_view(torch::Tensor whole, const Box& box) {
  for (std::size_t d = 0; d < box.size.size(); ++d)
    whole = whole.narrow(static_cast<std::int64_t>(d), box.offset[d], box.size[d]);
  return whole;
}

torch::Tensor take(const torch::Tensor& whole, const Cut& cut) {
  if (cut.boxes.size() == 1) return box_view(whole, cut.boxes[0]).contiguous();
  std::vector<torch::Tensor> parts;
  for (const Box& box : cut.boxes) parts.push_back(box_view(whole, box));
  return torch::cat(parts, cut.dim);
}

void put(const torch::Tensor& local, const Cut& cut, torch::Tensor& whole) {
  std::int64_t at = 0;
  for (const Box& box : cut.boxes) {
    const std::int64_t size = box.size.empty() ? 0 : box.size[static_cast<std::size_t>(cut.dim)];
    box_view(whole, box).copy_(cut.boxes.size() == 1 ? local : local.narrow(cut.dim, at, size));
    at += size;
  }
}

}  // namespace tutti::parallel
