#include <cmath>
#include <numbers>

#include "nn/decoder.h"

namespace tutti::nn {
namespace {

// Llama 3.1: long wavelengths are slowed by `factor`, short ones kept, those between interpolated.
torch::Tensor llama3_frequencies(const torch::Tensor& frequencies, const recipe::RopeScaling& s) {
  const auto context = static_cast<double>(s.original_context);
  const auto wavelength = 2 * std::numbers::pi / frequencies;
  const auto smooth = (context / wavelength - s.low_frequency_factor) /
                      (s.high_frequency_factor - s.low_frequency_factor);
  const auto blended = (1 - smooth) * frequencies / s.factor + smooth * frequencies;
  const auto slowed = torch::where(wavelength > context / s.low_frequency_factor,
                                   frequencies / s.factor, frequencies);
  const auto between = (wavelength >= context / s.high_frequency_factor)
                           .logical_and(wavelength <= context / s.low_frequency_factor);
  return torch::where(between, blended, slowed);
}

}  // namespace

Rope rope_table(const recipe::Model& config, std::int64_t length) {
  const auto exponents = torch::arange(0, config.head_dim, 2, torch::kLong).to(torch::kFloat) /
                         static_cast<double>(config.head_dim);
  torch::Tensor frequencies = 1.0 / torch::pow(torch::Scalar(config.rope_theta), exponents);
  if (config.rope_scaling.kind == "llama3")
    frequencies = llama3_frequencies(frequencies, config.rope_scaling);
  if (config.rope_scaling.kind == "linear") frequencies = frequencies / config.rope_scaling.factor;
  const auto angles = torch::outer(torch::arange(length, torch::kFloat), frequencies);
  return {angles.cos(), angles.sin()};
}

}  // namespace tutti::nn
