// Learns a byte-level BPE vocabulary (Sennrich et al. 2016, "Neural machine translation of rare
// words with subword units") and writes it as a tokenizer.json that the `tokenizers` library loads
// too and for which it gives the same ids.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

struct TrainerOptions {
  std::int64_t vocab = 4096;     // ids in all: 256 bytes + special + merges; at least 256 + special
  std::string split = "llama3";  // gpt2 | llama3 | qwen: the pattern that cuts text into words
  std::vector<std::string> special = {"<|endoftext|>"};  // ids 0, 1, ...; the first ends documents
  std::int64_t min_frequency = 2;                        // of a merged pair
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};  // merges; may be empty
};

class TokenizerTrainer {
 public:
  explicit TokenizerTrainer(TrainerOptions options);  // ConfigError if the options are wrong
  ~TokenizerTrainer();
  TokenizerTrainer(TokenizerTrainer&&) noexcept;

  void add(std::string_view text);  // UTF-8, one document
  // The tokenizer.json. Deterministic: ties go to the pair of smaller ids. Fewer tokens than asked
  // when the text has no more pairs of min_frequency.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// `tutti tokenizer train`: reads sources as corpus.h does, writes `out` durably.
// Returns the vocabulary's size.
std::int64_t train_tokenizer(const std::vector<std::string>& sources, const std::string& text_field,
                             const TrainerOptions& options, const std::string& out);

}  // namespace tutti::data
