#include "nn/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace tutti::nn {
namespace {

struct Choice {
  std::int64_t token;
  double weight;  // unnormalised probability
};

// The tokens that may be drawn. Sorted, likeliest first, if top_k or top_p limit them.
std::vector<Choice> choices(const float* logits, std::int64_t vocab, const Sampling& s) {
  const double most = *std::max_element(logits, logits + vocab);
  std::vector<Choice> all(static_cast<std::size_t>(vocab));
  for (std::int64_t i = 0; i < vocab; ++i)
    all[static_cast<std::size_t>(i)] = {i, std::exp((logits[i] - most) / s.temperature)};
  if (s.top_k == 0 && s.top_p >= 1) return all;

  const auto count = s.top_k > 0 ? std::min(s.top_k, vocab) : vocab;
  std::partial_sort(all.begin(), all.begin() + count, all.end(),
                    [](const Choice& a, const Choice& b) {
                      return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
                    });
  all.resize(static_cast<std::size_t>(count));
  double total = 0;
  for (const auto& choice : all) total += choice.weight;
  double reached = 0;
  std::size_t kept = 0;
  while (kept < all.size() && (kept == 0 || reached < s.top_p * total))
    reached += all[kept++].weight;
  all.resize(kept);
  return all;
}

class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module) : module_(module), training_(module.is_training()) {
    module_.eval();
  }
  ~EvalMode() { module_.train(training_); }

 private:
  torch::nn::Module& module_;
  bool training_;
};

}  // namespace

void check(const Sampling& s) {
  std::vector<Violation> found;
  if (!(s.temperature >= 0))
    found.push_back({"temperature", "", str(s.temperature), "must be 0 (greedy) or more", ""});
  if (s.top_k < 0) found.push_back({"top_k", "", str(s.top_k), "must be 0 (all) or more", ""});
  if (!(s.top_p > 0 && s.top_p <= 1))
    found.push_back({"top_p", "", str(s.top_p), "must be in (0, 1]", ""});
  if (!found.empty()) throw ConfigError(found);
}

std::int64_t sample(const torch::Tensor& logits, const Sampling& s, std::uint64_t position) {
  const auto row = logits.to(torch::kCPU, torch::kFloat).contiguous();
  const float* values = row.data_ptr<float>();
  const std::int64_t vocab = s.ids > 0 ? std::min(s.ids, row.numel()) : row.numel();
  if (s.temperature == 0) return std::max_element(values, values + vocab) - values;
  const auto drawable = choices(values, vocab, s);
  double total = 0;
  for (const auto& choice : drawable) total += choice.weight;
  double left = RandomStream(s.seed, "generate").uniform(position) * total;
  for (const auto& choice : drawable) {
    left -= choice.weight;
    if (left < 0) return choice.token;
  }
  return drawable.back().token;
}

std::vector<std::int64_t> generate(LanguageModel& model, const std::vector<std::int64_t>& prompt,
                                   std::int64_t count, const Sampling& sampling,
                                   const OnToken& on_token) {
  check(sampling);
  if (prompt.empty()) throw ConfigError("prompt: is empty; give at least one token");
  torch::NoGradGuard no_grad;
  const EvalMode eval(model);
  const auto device = model.parameters().front().device();
  const std::int64_t context = model.config().context;
  std::vector<std::int64_t> text = prompt;
  KvCache cache;
  std::size_t fed = 0;  // tokens of `text` that the cache holds or has dropped
  while (static_cast<std::int64_t>(text.size() - prompt.size()) < count) {
    if (cache.length() + static_cast<std::int64_t>(text.size() - fed) > context) {
      cache = KvCache();
      fed = text.size() -
            static_cast<std::size_t>(std::min<std::int64_t>(
                std::max<std::int64_t>(1, context / 2), static_cast<std::int64_t>(text.size())));
    }
    const auto input = torch::tensor(
        std::vector<std::int64_t>(text.begin() + static_cast<std::ptrdiff_t>(fed), text.end()),
        torch::kLong);
    const auto logits = model.logits(input.unsqueeze(0).to(device), {}, &cache);
    fed = text.size();
    text.push_back(sample(logits[0][-1], sampling, text.size()));
    if (on_token && !on_token(text.back())) break;
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace tutti::nn
