#include "train/engine_state.h"

#include <map>
#include <set>

#include "collective/dtypes.h"

namespace tutti::train {
namespace {

std::byte* bytes_of(const torch::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

// What the tensor is stored as: the optimizer's moments may be stored in another floating type than
// they are kept in (optimizer.state was changed).
DType stored_type(const parallel::StateTensor& tensor, const std::map<std::string, DType>& stored) {
  const DType kept = collective::to_dtype(tensor.value.scalar_type());
  const auto found = stored.find(tensor.name);
  const bool moment =
      tensor.name.starts_with("optimizer.") ||
      (tensor.name.starts_with("island.") && tensor.name.find("/optimizer.") != std::string::npos);
  if (found == stored.end() || !moment) return kept;
  const auto floating = [](DType type) {
    return type == DType::f64 || type == DType::f32 || type == DType::bf16;
  };
  return floating(kept) && floating(found->second) ? found->second : kept;
}

std::map<std::string, DType> stored_types(const checkpoint::Loader& loader) {
  std::map<std::string, DType> types;
  for (const checkpoint::Entry& entry : loader.manifest().entries) types[entry.name] = entry.dtype;
  return types;
}

// Each name once.
std::vector<checkpoint::Loader::Expected> expected_of(
    const std::vector<parallel::StateTensor>& state, const std::map<std::string, DType>& stored) {
  std::vector<checkpoint::Loader::Expected> expected;
  std::set<std::string> names;
  for (const parallel::StateTensor& tensor : state)
    if (names.insert(tensor.name).second)
      expected.push_back({tensor.name, stored_type(tensor, stored), tensor.global_shape()});
  return expected;
}

}  // namespace

std::vector<checkpoint::TensorView> views_of(const std::vector<parallel::StateTensor>& state) {
  std::vector<checkpoint::TensorView> views;
  for (const parallel::StateTensor& tensor : state)
    if (!tensor.box || tensor.owned)
      views.push_back({tensor.name, collective::to_dtype(tensor.value.scalar_type()),
                       tensor.global_shape(), bytes_of(tensor.value), tensor.box});
  return views;
}

void read_state(const checkpoint::Loader& loader, parallel::Engine& engine) {
  const torch::NoGradGuard no_grad;
  const auto state = engine.state();
  const auto stored = stored_types(loader);
  loader.require(expected_of(state, stored));
  for (const parallel::StateTensor& tensor : state) {
    const auto type = collective::to_scalar_type(stored_type(tensor, stored));
    torch::Tensor value = tensor.value;
    if (type != value.scalar_type()) value = torch::empty(value.sizes(), type);
    loader.read(tensor.name, tensor.place(), bytes_of(value));
    if (!value.is_same(tensor.value)) torch::Tensor(tensor.value).copy_(value);  // to the nearest
  }
  engine.restored();
}

}  // namespace tutti::train
