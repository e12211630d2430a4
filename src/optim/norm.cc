#include "optim/norm.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "optim/kernels.h"

namespace tutti::optim {
namespace {

constexpr std::int64_t block = 4096;

template <class T>
double blocked(const T* data, std::int64_t count) {
  const std::int64_t blocks = (count + block - 1) / block;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  at::parallel_for(0, blocks, 16, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t b = first; b < end; ++b)
      sums[static_cast<std::size_t>(b)] =
          sum_of_squares(data + b * block, std::min(block, count - b * block));
  });
  for (std::size_t width = 1; width < sums.size(); width *= 2)
    for (std::size_t i = 0; i + width < sums.size(); i += 2 * width) sums[i] += sums[i + width];
  return sums.empty() ? 0 : sums[0];
}

}  // namespace

double squared_norm(const torch::Tensor& flat) {
  TUTTI_ASSERT(flat.is_contiguous());
  if (flat.device().is_cpu() && flat.scalar_type() == torch::kFloat)
    return blocked(flat.const_data_ptr<float>(), flat.numel());
  if (flat.device().is_cpu() && flat.scalar_type() == torch::kDouble)
    return blocked(flat.const_data_ptr<double>(), flat.numel());
  return flat.to(torch::kDouble).square().sum().item<double>();
}

double clip_scale(double norm, double max_norm) {
  return max_norm == 0 ? 1 : std::min(1.0, max_norm / (norm + 1e-6));
}

std::string first_non_finite(const torch::Tensor& flat, const std::vector<Segment>& segments) {
  for (const Segment& segment : segments)
    if (!torch::isfinite(flat.narrow(0, segment.offset, segment.size)).all().item<bool>())
      return segment.name;
  return "";
}

}  // namespace tutti::optim
