#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/sampler.h"

namespace tutti::data {
namespace {

// Every source that fails, so that all are told at once.
struct Failures {
  std::vector<Violation> wrong;
  std::string world;

  void raise() const {
    if (!wrong.empty()) throw ConfigError(wrong);
    if (!world.empty()) throw WorldError(world);
  }
};

std::vector<Part> open_all(const char* field, const std::vector<recipe::Source>& sources,
                           const Tokenizer& tokenizer, const TokenizeOptions& options,
                           Failures& failures) {
  std::vector<Part> parts;
  for (const recipe::Source& source : sources) {
    try {
      Corpus corpus = open_source(source.path, tokenizer, options);
      const std::uint64_t end = corpus.tokens();
      parts.push_back({std::move(corpus), source.weight, 0, end, source.path});
    } catch (const ConfigError& error) {
      if (error.violations().empty()) throw;
      for (Violation violation : error.violations()) {
        violation.field = field;
        failures.wrong.push_back(violation);
      }
    } catch (const WorldError& error) {
      failures.world += (failures.world.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  return parts;
}

// Where the held-out end begins: the document boundary nearest to the wanted share.
std::uint64_t held_out_from(const Corpus& corpus, double fraction) {
  const double wanted = static_cast<double>(corpus.tokens()) * (1 - fraction);
  const auto position = static_cast<std::uint64_t>(wanted);
  if (corpus.documents() < 2) return position;
  const std::span<const std::uint64_t> inner = corpus.offsets().subspan(1, corpus.documents() - 1);
  const auto above = std::lower_bound(inner.begin(), inner.end(), position);
  if (above == inner.begin()) return *above;
  if (above == inner.end()) return inner.back();
  const std::uint64_t below = *(above - 1);
  return *above - position < position - below ? *above : below;
}

std::vector<Part> hold_out(std::vector<Part>& train, double fraction) {
  std::vector<Part> validation = train;
  for (std::size_t i = 0; i < train.size(); ++i)
    train[i].end = validation[i].first = held_out_from(train[i].corpus, fraction);
  return validation;
}

double bytes_per_token(const std::vector<Part>& parts) {
  double bytes = 0, tokens = 0;
  for (const Part& part : parts) {
    const double share = static_cast<double>(part.end - part.first);
    bytes += share * static_cast<double>(part.corpus.text_bytes()) /
             static_cast<double>(std::max<std::uint64_t>(1, part.corpus.tokens()));
    tokens += share;
  }
  return tokens > 0 ? bytes / tokens : 1;
}

}  // namespace

Dataset open_dataset(const recipe::Data& data, const Tokenizer& tokenizer, std::uint64_t seed,
                     const TokenizeOptions& given) {
  TokenizeOptions options = given;
  options.text_field = data.text_field;
  Failures failures;
  std::vector<Part> train = open_all("data.train", data.train, tokenizer, options, failures);
  std::vector<Part> validation =
      open_all("data.validation", data.validation, tokenizer, options, failures);
  failures.raise();
  if (validation.empty() && data.validation_fraction > 0)
    validation = hold_out(train, data.validation_fraction);
  SamplerOptions sampling{.sequence = data.sequence,
                          .shuffled = data.order == "shuffled",
                          .document_mask = data.document_mask,
                          .concatenated = false,
                          .seed = seed};
  Dataset dataset;
  dataset.bytes_per_token = bytes_per_token(validation.empty() ? train : validation);
  dataset.train = std::make_unique<Sampler>(std::move(train), sampling);
  if (validation.empty()) return dataset;
  sampling.shuffled = false;
  sampling.concatenated = true;
  dataset.validation = std::make_unique<Sampler>(std::move(validation), sampling);
  return dataset;
}

}  // namespace tutti::data
