// Which part of each parameter a rank holds, from logical axes and rules: the one description that
// spreading, state, export and `tutti layout show` read.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "nn/spread.h"

namespace tutti::parallel {

struct Axes {
  std::map<std::string, std::vector<std::string>> of;  // parameter -> logical axis a dimension
  std::map<std::string, nn::Grain> grain;              // logical axis; absent: {1, 1}
};

// A parameter as one rank holds it: `boxes` of the global tensor, side by side along `dim`.
struct Cut {
  std::string name;
  std::vector<std::int64_t> shape;  // global
  nn::Type type;                    // on the tensor axis
  int dim = 0;
  std::vector<Box> boxes;  // whole: one box
  nn::Span part;           // of dimension `dim` (of its first part): what Spread::part says
  // Experts dealt over the ranks of expert and expert_tensor, whatever the tensor axis: `type` is
  // Replicate, and one box is cut in up to two dimensions.
  bool folded = false;

  std::vector<std::int64_t> local_shape() const;
};

// Ranks of the axes that cut parameters, or a rank's places on them.
struct CutRanks {
  int tensor = 1, expert = 1, expert_tensor = 1;
};

// The parts that a parameter cut like this has on these ranks; the one at `index`.
int parts_of(const Cut& cut, const CutRanks& size);
int part_of(const Cut& cut, const CutRanks& size, const CutRanks& index);
// A place that holds part `part` of whatever has it: the inverse of part_of.
CutRanks holder_of(int part, const CutRanks& size);

// The cut of each named parameter for the rank at `index`; `rules` maps a logical axis to a mesh
// axis or "none". A parameter with an axis "expert" is folded if there are ranks of expert or
// expert_tensor: its experts over the first, its "mlp" over the second. ConfigError if two
// dimensions of one parameter are cut on the tensor axis.
std::vector<Cut> cut_parameters(
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& parameters,
    const Axes& axes, const std::map<std::string, std::string>& rules, const CutRanks& size,
    const CutRanks& index);

// The part of `whole` that is `box`, a view.
torch::Tensor box_view(torch::Tensor whole, const Box& box);

// The local tensor of a whole one, and back: `local` into its places in `whole`.
torch::Tensor take(const torch::Tensor& whole, const Cut& cut);
void put(const torch::Tensor& local, const Cut& cut, torch::Tensor& whole);

}  // namespace tutti::parallel
