#include "parallel/step_parts.h"

#include "base/rng.h"
#include "comm/reduction_tree.h"

namespace tutti::parallel {

torch::ScalarType compute_type(const std::string& precision) {
  if (precision == "bf16") return torch::kBFloat16;
  if (precision == "fp16") return torch::kHalf;
  return torch::kFloat;
}

double tree_sum(const double* values, std::int64_t count) {
  if (count == 1) return values[0];
  const std::int64_t split = comm::split_of(static_cast<int>(count));
  return tree_sum(values, split) + tree_sum(values + split, count - split);
}

void seed_micro_batch(std::uint64_t seed, std::int64_t step, std::int64_t micro_batch) {
  torch::manual_seed(RandomStream(seed, "micro-batch", static_cast<std::uint64_t>(micro_batch))
                         .below(std::uint64_t{1} << 62, static_cast<std::uint64_t>(step)));
}

}  // namespace tutti::parallel
