#include "nn/dropout.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "base/rng.h"

namespace tutti::nn {

torch::Tensor keep_mask(torch::IntArrayRef shape, double rate, const std::string& name,
                        const DropoutKey& key, torch::Device device) {
  torch::Tensor mask = torch::empty(shape, torch::kFloat);
  const RandomStream stream(key.seed, "dropout/" + name, key.step);
  const std::int64_t size = mask.numel(), samples = std::max<std::int64_t>(1, shape[0]);
  const std::int64_t first = key.first_sample * (size / samples);
  const auto limit = static_cast<std::uint64_t>(std::ldexp(rate, 32));  // dropped below it
  const auto kept = static_cast<float>(1 / (1 - rate));
  float* out = mask.data_ptr<float>();
  at::parallel_for(0, size, 16384, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::uint32_t, 4> words{};
    for (std::int64_t i = begin; i < end; ++i) {
      const auto position = static_cast<std::uint64_t>(first + i);
      if (i == begin || position % 4 == 0) words = stream.words(position / 4);
      out[i] = words[position % 4] < limit ? 0.0f : kept;
    }
  });
  return device.is_cpu() ? mask : mask.to(device);
}

}  // namespace tutti::nn
