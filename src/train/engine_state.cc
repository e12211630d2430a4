#include "train/engine_state.h"

#include <algorithm>
#include <charconv>
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

// "data.3/compress.error/w" -> 3, "compress.error/w".
struct OfRank {
  std::int64_t rank = -1;  // no data rank's own
  std::string rest;
};

OfRank of_rank(const std::string& name) {
  const std::size_t slash = name.find('/');
  if (!name.starts_with("data.") || slash == std::string::npos) return {-1, name};
  std::int64_t rank = -1;
  const auto [end, error] = std::from_chars(name.data() + 5, name.data() + slash, rank);
  if (error != std::errc() || end != name.data() + slash || rank < 0) return {-1, name};
  return {rank, name.substr(slash + 1)};
}

// What sums over data ranks carry along (parallel/reducer.h): other layouts do without it.
bool of_sums(const std::string& name) {
  const std::size_t slash = name.find('/');
  const std::string first = name.substr(0, slash);
  const bool ranked = first.starts_with("data.") || first.starts_with("tensor.");
  return (ranked ? name.substr(slash + 1) : name).starts_with("compress.");
}

// Each name once.
std::vector<checkpoint::Loader::Expected> expected_of(
    const std::vector<parallel::StateTensor>& state, const std::map<std::string, DType>& stored,
    const checkpoint::Loader& loader) {
  std::vector<checkpoint::Loader::Expected> expected;
  std::set<std::string> names;
  for (const parallel::StateTensor& tensor : state)
    if (!of_sums(tensor.name) && names.insert(tensor.name).second)
      expected.push_back({tensor.name, stored_type(tensor, stored), tensor.global_shape()});
  for (const checkpoint::Entry& entry : loader.manifest().entries)
    if (of_sums(entry.name)) expected.push_back({entry.name, entry.dtype, entry.shape});
  return expected;
}

// What the checkpoint has of the sums' state. What data ranks have not sent is an addend: of
// r ranks, rank i takes over what i, i + r, i + 2r.. had, so that nothing is lost; and rank 0 what
// was not sent of the sum, where the layout keeps no such thing. What the checkpoint has not, or of
// another shape or type, is as at the start.
class SumsReader {
 public:
  SumsReader(const checkpoint::Loader& loader, const std::vector<parallel::StateTensor>& state)
      : loader_(loader) {
    for (const parallel::StateTensor& tensor : state) {
      ranks_ = std::max(ranks_, of_rank(tensor.name).rank + 1);
      keeps_sum_error_ |= tensor.name.starts_with(of_sum);
    }
    for (const checkpoint::Entry& entry : loader.manifest().entries)
      if (of_sums(entry.name)) stored_[entry.name] = &entry;
  }

  void read(const parallel::StateTensor& tensor) const {
    const OfRank own = of_rank(tensor.name);
    if (own.rank < 0) {
      const auto found = stored_.find(tensor.name);
      if (found != stored_.end() && fits(*found->second, tensor))
        loader_.read(tensor.name, tensor.place(), bytes_of(tensor.value));
      return;
    }
    torch::Tensor sum = tensor.value.zero_(), part = torch::empty_like(sum);
    for (const auto& [name, entry] : stored_)
      if (fits(*entry, tensor) && is_addend(name, own)) {
        loader_.read(name, tensor.place(), bytes_of(part));
        sum.add_(part);
      }
  }

 private:
  static constexpr const char* of_a_rank = "compress.error/";
  static constexpr const char* of_sum = "compress.sum_error/";

  static bool fits(const checkpoint::Entry& entry, const parallel::StateTensor& tensor) {
    return entry.shape == tensor.global_shape() &&
           entry.dtype == collective::to_dtype(tensor.value.scalar_type());
  }

  bool is_addend(const std::string& name, const OfRank& own) const {
    const OfRank other = of_rank(name);
    if (other.rank >= 0) return other.rank % ranks_ == own.rank && other.rest == own.rest;
    const std::string of_parameter = own.rest.substr(own.rest.find('/') + 1);
    return !keeps_sum_error_ && own.rank == 0 && own.rest.starts_with(of_a_rank) &&
           name == of_sum + of_parameter;
  }

  const checkpoint::Loader& loader_;
  std::int64_t ranks_ = 1;
  bool keeps_sum_error_ = false;  // some rank of this layout
  std::map<std::string, const checkpoint::Entry*> stored_;
};

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
  loader.require(expected_of(state, stored, loader));
  const SumsReader sums(loader, state);
  for (const parallel::StateTensor& tensor : state) {
    if (of_sums(tensor.name)) {
      sums.read(tensor);
      continue;
    }
    const auto type = collective::to_scalar_type(stored_type(tensor, stored));
    torch::Tensor value = tensor.value;
    if (type != value.scalar_type()) value = torch::empty(value.sizes(), type);
    loader.read(tensor.name, tensor.place(), bytes_of(value));
    if (!value.is_same(tensor.value)) torch::Tensor(tensor.value).copy_(value);  // to the nearest
  }
  engine.restored();
}

}  // namespace tutti::train
