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

  std::vector<std::int64_t> local_shape() const;
};

// The cut of each named parameter for rank `index` of `size` on the tensor axis; `rules` maps a
// logical axis to a mesh axis or "none". ConfigError if two dimensions of one parameter are cut.
std::vector<Cut> cut_parameters(
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& parameters,
    const Axes& axes, const std::map<std::string, std::string>& rules, int size, int index);

// The local tensor of a whole one, and back: `local` into its places in `whole`.
torch::Tensor take(const torch::Tensor& whole, const Cut& cut);
void put(const torch::Tensor& local, const Cut& cut, torch::Tensor& whole);

}  // namespace tutti::parallel
