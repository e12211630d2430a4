#include "data/sampler.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"

namespace tutti::data {
namespace {

constexpr std::uint64_t cycle_length = 4096;  // Weights are rounded to 1/4096.

// Shares of the cycle by largest remainder, at least 1 each.
std::vector<std::uint64_t> make_quotas(const std::vector<Part>& parts) {
  double sum = 0;
  for (const Part& part : parts) sum += part.weight;
  std::vector<std::uint64_t> quotas;
  std::vector<double> rest;
  for (const Part& part : parts) {
    const double exact = part.weight / sum * static_cast<double>(cycle_length);
    quotas.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(exact)));
    rest.push_back(exact - static_cast<double>(quotas.back()));
  }
  auto total = std::accumulate(quotas.begin(), quotas.end(), std::uint64_t{0});
  while (total < cycle_length) {
    const auto most = std::max_element(rest.begin(), rest.end()) - rest.begin();
    ++quotas[static_cast<std::size_t>(most)];
    rest[static_cast<std::size_t>(most)] -= 1;
    ++total;
  }
  return quotas;
}

void check_parts(const std::vector<Part>& parts, std::int64_t sequence) {
  std::vector<Violation> wrong;
  for (const Part& part : parts) {
    if (part.end - part.first < static_cast<std::uint64_t>(sequence) + 1)
      wrong.push_back(
          {"data.sequence", "", str(sequence),
           str("is too long: ", part.source.empty() ? part.corpus.path() : part.source, " offers ",
               part.end - part.first, " tokens, one sample needs ", sequence + 1),
           "give more text or a shorter sequence"});
    if (!(part.weight > 0))
      wrong.push_back({"weight", "", str(part.weight), "must be above 0", ""});
  }
  if (parts.empty()) wrong.push_back({"data.train", "", "", "has no source", "name a file"});
  if (!wrong.empty()) throw ConfigError(wrong);
}

}  // namespace

Sampler::Sampler(std::vector<Part> parts, const SamplerOptions& options)
    : parts_(std::move(parts)), options_(options) {
  TUTTI_ASSERT(options_.sequence > 0, "sequence ", options_.sequence);
  check_parts(parts_, options_.sequence);
  for (const Part& part : parts_) {
    TUTTI_ASSERT(part.first < part.end && part.end <= part.corpus.tokens(), "part beyond corpus");
    blocks_.push_back((part.end - part.first - 1) / static_cast<std::uint64_t>(options_.sequence));
    samples_ += blocks_.back();
  }
  if (parts_.size() == 1 || options_.concatenated) return;
  quotas_ = make_quotas(parts_);
  const auto length = std::accumulate(quotas_.begin(), quotas_.end(), std::uint64_t{0});
  std::vector<std::uint64_t> used(parts_.size(), 0);
  for (std::uint64_t at = 0; at < length; ++at) {
    std::size_t best = 0;
    std::int64_t best_deficit = INT64_MIN;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      const auto deficit = static_cast<std::int64_t>(quotas_[part] * (at + 1)) -
                           static_cast<std::int64_t>(used[part] * length);
      if (deficit > best_deficit) best = part, best_deficit = deficit;
    }
    cycle_.push_back(static_cast<std::uint32_t>(best));
    ordinal_.push_back(static_cast<std::uint32_t>(used[best]++));
  }
}

Sampler::Choice Sampler::choose(std::uint64_t position) const {
  if (parts_.size() == 1) return {0, position};
  if (options_.concatenated) {
    const std::uint64_t epoch = position / samples_;
    std::uint64_t at = position % samples_;
    std::size_t part = 0;
    for (; at >= blocks_[part]; ++part) at -= blocks_[part];
    return {part, epoch * blocks_[part] + at};
  }
  const std::uint64_t at = position % cycle_.size();
  const std::size_t part = cycle_[at];
  return {part, position / cycle_.size() * quotas_[part] + ordinal_[at]};
}

Sampler::Place Sampler::place(std::uint64_t position) const {
  const Choice choice = choose(position);
  const std::uint64_t blocks = blocks_[choice.part];
  const std::uint64_t index = choice.count % blocks;
  if (!options_.shuffled) return {choice.part, index};
  const RandomStream stream(options_.seed, str("data/order/", choice.part), choice.count / blocks);
  return {choice.part, Permutation(blocks, stream)(index)};
}

namespace {

// Numbers the documents of tokens [start, start + inputs + 1) and masks targets across their ends.
void mask_documents(const Corpus& corpus, std::uint64_t start, std::span<std::int32_t> targets,
                    std::span<std::int32_t> documents) {
  const std::span<const std::uint64_t> offsets = corpus.offsets();
  std::uint64_t next = corpus.document_of(start) + 1;  // offsets[next]: the current document's end
  std::int32_t number = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!documents.empty()) documents[i] = number;
    if (start + i + 1 != offsets[next]) continue;
    targets[i] = no_target;
    ++number;
    while (next + 1 < offsets.size() && offsets[next] <= start + i + 1) ++next;
  }
}

}  // namespace

void Sampler::fill(std::uint64_t position, std::span<std::int32_t> inputs,
                   std::span<std::int32_t> targets, std::span<std::int32_t> documents) const {
  const auto sequence = static_cast<std::size_t>(options_.sequence);
  TUTTI_ASSERT(inputs.size() == sequence && targets.size() == sequence &&
                   (documents.empty() || documents.size() == sequence),
               "rows must hold ", sequence, " values");
  const Place where = place(position);
  const Part& part = parts_[where.part];
  const std::uint64_t start = part.first + where.block * sequence;
  part.corpus.read(start, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  targets.back() = part.corpus.token(start + sequence);
  const auto vocab =
      static_cast<std::uint32_t>(std::min<std::int64_t>(part.corpus.vocab(), 1 << 30));
  for (std::size_t i = 0; i <= sequence; ++i) {
    const std::int32_t id = i < sequence ? inputs[i] : targets.back();
    if (static_cast<std::uint32_t>(id) >= vocab)
      throw WorldError(str(part.corpus.path(), ": token ", start + i, " is ", id,
                           ", beyond the vocabulary of ", vocab));
  }
  std::fill(documents.begin(), documents.end(), 0);
  if (options_.document_mask) mask_documents(part.corpus, start, targets, documents);
}

std::string Sampler::fingerprint() const {
  std::uint64_t tokens = 0;
  std::vector<std::uint64_t> words{static_cast<std::uint64_t>(options_.sequence),
                                   options_.shuffled ? 1u : 0u};
  for (const Part& part : parts_) {
    tokens += part.end - part.first;
    words.insert(words.end(), {part.first, part.end, part.corpus.checksum(),
                               std::bit_cast<std::uint64_t>(part.weight)});
  }
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx",
                static_cast<unsigned long long>(hash64(std::as_bytes(std::span(words)))));
  return str(tokens, " tokens (", hash, ")");
}

}  // namespace tutti::data
