// Text, one token at a time: a KV cache, so that a token costs one position; sampling by name, so
// that a seed gives the same text on every machine layout.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "nn/model.h"

namespace tutti::nn {

struct Sampling {
  double temperature = 1;  // 0: the likeliest token (greedy; the lowest id on a tie)
  std::int64_t top_k = 0;  // among the k likeliest; 0: all
  double top_p = 1;        // among the likeliest whose probabilities first reach p; (0, 1]
  std::uint64_t seed = 1;
  std::int64_t ids = 0;  // only ids below it (a tokenizer's; the model may have more); 0: all
};

// Throws ConfigError, all mistakes at once, for values outside their ranges.
void check(const Sampling& sampling);

// One draw from `logits` (fp32, [vocab]) for the token at `position` of the text.
std::int64_t sample(const torch::Tensor& logits, const Sampling& sampling, std::uint64_t position);

// Called with each new token as soon as it is known; false ends the text after it.
using OnToken = std::function<bool(std::int64_t token)>;

// Up to `count` tokens after `prompt` (at least one token, else ConfigError), which is not
// returned. The model runs in eval mode without gradients and is left in the mode it was in. When
// the context is full, the text goes on from its last half.
std::vector<std::int64_t> generate(LanguageModel& model, const std::vector<std::int64_t>& prompt,
                                   std::int64_t count, const Sampling& sampling,
                                   const OnToken& on_token = {});

}  // namespace tutti::nn
