#include "optim/norm.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "optim/kernels.h"

namespace tutti::optim {
namespace {

template <class T>
void blocked(const T* data, std::int64_t count, double* out) {
  at::parallel_for(0, norm_blocks(count), 16, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t b = first; b < end; ++b)
      out[b] = sum_of_squares(data + b * norm_block, std::min(norm_block, count - b * norm_block));
  });
}

}  // namespace

void block_squares(const torch::Tensor& flat, double* out) {
  TUTTI_ASSERT(flat.is_contiguous());
  const std::int64_t count = flat.numel();
  if (flat.device().is_cpu() && flat.scalar_type() == torch::kFloat)
    return blocked(flat.const_data_ptr<float>(), count, out);
  if (flat.device().is_cpu() && flat.scalar_type() == torch::kDouble)
    return blocked(flat.const_data_ptr<double>(), count, out);
  for (std::int64_t b = 0; b < norm_blocks(count); ++b)
    out[b] = flat.narrow(0, b * norm_block, std::min(norm_block, count - b * norm_block))
                 .to(torch::kDouble)
                 .square()
                 .sum()
                 .item<double>();
}

double tree_sum(std::vector<double> values) {
  for (std::size_t width = 1; width < values.size(); width *= 2)
    for (std::size_t i = 0; i + width < values.size(); i += 2 * width)
      values[i] += values[i + width];
  return values.empty() ? 0 : values[0];
}

double squared_norm(const torch::Tensor& flat, const std::vector<Segment>& segments) {
  std::vector<double> sums;
  for (const Segment& segment : segments) {
    std::vector<double> blocks(static_cast<std::size_t>(norm_blocks(segment.size)));
    block_squares(flat.narrow(0, segment.offset, segment.size), blocks.data());
    sums.push_back(tree_sum(std::move(blocks)));
  }
  return tree_sum(std::move(sums));
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
