#include "train/engine_state.h"

#include <set>

#include "collective/dtypes.h"

namespace tutti::train {
namespace {

std::byte* bytes_of(const torch::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

std::vector<std::int64_t> global_shape(const parallel::StateTensor& tensor) {
  return tensor.box ? tensor.shape : tensor.value.sizes().vec();
}

// Each name once.
std::vector<checkpoint::Loader::Expected> expected_of(
    const std::vector<parallel::StateTensor>& state) {
  std::vector<checkpoint::Loader::Expected> expected;
  std::set<std::string> names;
  for (const parallel::StateTensor& tensor : state)
    if (names.insert(tensor.name).second)
      expected.push_back(
          {tensor.name, collective::to_dtype(tensor.value.scalar_type()), global_shape(tensor)});
  return expected;
}

}  // namespace

std::vector<checkpoint::TensorView> views_of(const std::vector<parallel::StateTensor>& state) {
  std::vector<checkpoint::TensorView> views;
  for (const parallel::StateTensor& tensor : state)
    if (!tensor.box || tensor.owned)
      views.push_back({tensor.name, collective::to_dtype(tensor.value.scalar_type()),
                       global_shape(tensor), bytes_of(tensor.value), tensor.box});
  return views;
}

void read_state(const checkpoint::Loader& loader, parallel::Engine& engine) {
  const auto state = engine.state();
  loader.require(expected_of(state));
  for (const parallel::StateTensor& tensor : state)
    loader.read(tensor.name, tensor.box ? *tensor.box : whole(tensor.value.sizes().vec()),
                bytes_of(tensor.value));
  engine.restored();
}

}  // namespace tutti::train
