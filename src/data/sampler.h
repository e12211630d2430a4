// Which tokens are sample `position` of a run: a pure function of (seed, position), so that
// workers, accumulation and resumption cannot change it. The only state a checkpoint needs is the
// number of samples already used.
//
// A sample is sequence+1 neighbouring tokens of one corpus, block k = [k*seq, k*seq+seq]; inputs
// are the first seq, targets the last seq (neighbouring blocks share a token). B = (tokens-1) /
// seq.
//   sequential  sample p of a corpus is block p mod B
//   shuffled    epoch e = p / B visits block Permutation_e(p mod B): each once an epoch
// A blend takes at each position the corpus whose share lags most behind its weight (ties: the
// first), which is a function of the position alone.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "recipe/recipe.h"

namespace tutti::data {

// Targets where no loss is taken.
inline constexpr std::int32_t no_target = -1;

// The part [first, end) of a corpus that a sampler draws from.
struct Part {
  Corpus corpus;
  double weight = 1;
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::string source = {};  // as the user calls it; "": the corpus' path
};

struct SamplerOptions {
  std::int64_t sequence = 256;
  bool shuffled = true;
  bool document_mask = false;
  bool concatenated = false;  // no blend: part after part, each block once an epoch (evaluation)
  std::uint64_t seed = 1;
};

// Immutable: calls are safe from several threads.
class Sampler {
 public:
  // ConfigError if a part is too short for one sample (names its path).
  Sampler(std::vector<Part> parts, const SamplerOptions& options);

  // Sample `position` >= 0 into rows of `sequence` values. documents: 0, 1, ... the document within
  // the sample that each input belongs to (all 0 without document_mask); targets across a
  // document's end are no_target with document_mask. `documents` may be empty.
  void fill(std::uint64_t position, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
            std::span<std::int32_t> documents = {}) const;

  // "12 tokens (0123456789abcdef)": all parts' tokens and how they are drawn from.
  std::string fingerprint() const;
  std::int64_t sequence() const { return options_.sequence; }
  // Samples an epoch: every block of every part once (for a blend: the sum of blocks).
  std::uint64_t samples() const { return samples_; }
  std::uint64_t tokens() const { return samples_ * static_cast<std::uint64_t>(options_.sequence); }

  // Where sample `position` lies: part and block. For tests and reports.
  struct Place {
    std::size_t part;
    std::uint64_t block;
  };
  Place place(std::uint64_t position) const;

 private:
  struct Choice {
    std::size_t part;
    std::uint64_t count;
  };
  Choice choose(std::uint64_t position) const;
  std::vector<Part> parts_;
  SamplerOptions options_;
  std::vector<std::uint64_t> blocks_;   // of each part
  std::vector<std::uint64_t> quotas_;   // picks of each part in one cycle
  std::vector<std::uint32_t> cycle_;    // part at each position of the cycle
  std::vector<std::uint32_t> ordinal_;  // how often that part came before within the cycle
  std::uint64_t samples_ = 0;
};

struct Dataset {
  std::unique_ptr<Sampler> train;
  std::unique_ptr<Sampler> validation;  // null if the recipe asks for none; always sequential
  // Bytes of text a validation token stands for, for nats a byte; 1 for "bytes".
  double bytes_per_token = 1;
};

// ConfigError, or else WorldError, with every bad source. With validation_fraction, whole documents
// at each corpus' end are held out; the tail of the text if it is a single document.
Dataset open_dataset(const recipe::Data& data, const Tokenizer& tokenizer, std::uint64_t seed,
                     const TokenizeOptions& options = {});

// Micro-batches made ahead by one thread. Rows are [batch x sequence], row-major.
struct Batch {
  std::uint64_t first = 0;  // position of its first sample
  std::vector<std::int32_t> inputs, targets, documents;
};

class Prefetcher {
 public:
  // Yields batches of the listed runs of positions in the order that next() is called.
  // `positions(i)` gives the first position of batch i; it is called on the thread.
  Prefetcher(const Sampler& sampler, std::int64_t batch,
             std::function<std::uint64_t(std::uint64_t index)> positions, int depth = 4);
  ~Prefetcher();  // stops
  Batch next();   // rethrows what the thread met
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::data
