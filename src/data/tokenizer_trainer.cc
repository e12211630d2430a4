#include "data/tokenizer_trainer.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus.h"
#include "data/regex.h"
#include "data/text_pipeline.h"

namespace tutti::data {
namespace {

const char* pattern_named(const std::string& split) {
  if (split == "gpt2") return gpt2_pattern;
  if (split == "llama3") return llama3_pattern;
  if (split == "qwen") return qwen_pattern;
  return nullptr;
}

void check(const TrainerOptions& options) {
  std::vector<Violation> wrong;
  if (!pattern_named(options.split))
    wrong.push_back({"split", "", options.split, "must be gpt2, llama3 or qwen", ""});
  const auto least = static_cast<std::int64_t>(256 + options.special.size());
  if (options.vocab < least || options.vocab > 1 << 20)
    wrong.push_back(
        {"vocab", "", str(options.vocab),
         str("must be between ", least, " (256 bytes and the special tokens) and ", 1 << 20), ""});
  std::set<std::string> seen;
  for (const std::string& piece : options.special)
    if (piece.empty() || !seen.insert(piece).second)
      wrong.push_back({"special", "", piece, "must be neither empty nor given twice", ""});
  if (!wrong.empty()) throw ConfigError(wrong);
}

using Pair = std::pair<std::int32_t, std::int32_t>;
struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    return (static_cast<std::uint64_t>(pair.first) << 32 |
            static_cast<std::uint32_t>(pair.second)) *
               0x9E3779B97F4A7C15ull >>
           7;
  }
};
struct Word {
  std::vector<std::int32_t> ids;
  std::int64_t count;
};
struct Entry {
  std::int64_t count;
  Pair pair;
  bool operator<(const Entry& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

// Counts of pairs, kept while words change; the queue holds stale counts, which are put right
// when they come up.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word>& words) : words_(words) {
    for (std::size_t w = 0; w < words.size(); ++w)
      for (std::size_t i = 0; i + 1 < words[w].ids.size(); ++i)
        change({words[w].ids[i], words[w].ids[i + 1]}, words[w].count, w);
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  // The most frequent pair, smallest ids first among equals; false if none has `least`.
  bool best(std::int64_t least, Pair& pair) {
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const std::int64_t now = counts_[top.pair];
      if (now == top.count && now >= least) return pair = top.pair, true;
      if (now != top.count && now > 0 && now < top.count) queue_.push({now, top.pair});
    }
    return false;
  }

  void merge(const Pair& pair, std::int32_t id) {
    const std::unordered_set<std::size_t> where = std::move(where_[pair]);
    where_.erase(pair);
    std::set<Pair> grown;
    for (const std::size_t w : where) merge_in(words_[w], w, pair, id, grown);
    counts_.erase(pair);
    for (const Pair& fresh : grown)
      if (const auto found = counts_.find(fresh); found != counts_.end())
        queue_.push({found->second, fresh});
  }

 private:
  void change(const Pair& pair, std::int64_t by, std::size_t word) {
    counts_[pair] += by;
    if (by > 0) where_[pair].insert(word);
  }

  // Takes the word's pairs out of the counts, merges, and counts them again.
  void merge_in(Word& word, std::size_t index, const Pair& pair, std::int32_t id,
                std::set<Pair>& grown) {
    std::vector<std::int32_t>& ids = word.ids;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i)
      change({ids[i], ids[i + 1]}, -word.count, index);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ids.size(); ++kept) {
      const bool here = i + 1 < ids.size() && ids[i] == pair.first && ids[i + 1] == pair.second;
      ids[kept] = here ? id : ids[i];
      i += here ? 2 : 1;
    }
    ids.resize(kept);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      change({ids[i], ids[i + 1]}, word.count, index);
      if (ids[i] == id || ids[i + 1] == id) grown.insert({ids[i], ids[i + 1]});
    }
  }

  std::vector<Word>& words_;
  std::unordered_map<Pair, std::int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::unordered_set<std::size_t>, PairHash> where_;
  std::priority_queue<Entry> queue_;
};

Json describe(const TrainerOptions& options, const Json& vocab, const Json& merges) {
  Json added = Json::array();
  for (std::size_t i = 0; i < options.special.size(); ++i)
    added.push_back({{"id", i},
                     {"content", options.special[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern_named(options.split)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level})}}},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", merges}}}};
}

}  // namespace

struct TokenizerTrainer::State {
  TrainerOptions options;
  Regex regex;
  std::map<std::string, std::int64_t, std::less<>> counts;  // ordered: the result is deterministic
};

TokenizerTrainer::TokenizerTrainer(TrainerOptions options) {
  check(options);
  const char* pattern = pattern_named(options.split);
  state_.reset(new State{std::move(options), Regex(pattern), {}});
}
TokenizerTrainer::~TokenizerTrainer() = default;
TokenizerTrainer::TokenizerTrainer(TokenizerTrainer&&) noexcept = default;

void TokenizerTrainer::add(std::string_view text) {
  std::size_t bad = 0;
  if (!valid_utf8(text, &bad)) throw WorldError(str("text is not UTF-8: bad byte at offset ", bad));
  std::vector<Span> spans;
  state_->regex.spans(text, spans);
  for (const Span& span : spans) {
    const std::string_view word = text.substr(span.first, span.end - span.first);
    const auto found = state_->counts.find(word);
    if (found != state_->counts.end())
      ++found->second;
    else
      state_->counts.emplace(std::string(word), 1);
  }
}

std::string TokenizerTrainer::finish() {
  const TrainerOptions& options = state_->options;
  std::vector<std::string> pieces = options.special;
  const auto first_byte = static_cast<std::int32_t>(pieces.size());
  for (const std::string& character : byte_level_alphabet()) pieces.push_back(character);
  std::vector<Word> words;
  for (const auto& [text, count] : state_->counts) {
    Word word{{}, count};
    for (const char byte : text) word.ids.push_back(first_byte + static_cast<unsigned char>(byte));
    words.push_back(std::move(word));
  }
  PairCounts pairs(words);
  Json merges = Json::array();
  const auto size = [&] { return static_cast<std::int64_t>(pieces.size()); };
  const std::int64_t total = options.vocab - size();
  std::unordered_map<std::string, std::int32_t> known;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(pieces.size()); ++i)
    known.emplace(pieces[static_cast<std::size_t>(i)], i);
  Pair pair;
  while (size() < options.vocab && pairs.best(options.min_frequency, pair)) {
    const std::string& left = pieces[static_cast<std::size_t>(pair.first)];
    const std::string& right = pieces[static_cast<std::size_t>(pair.second)];
    std::string whole = left + right;
    merges.push_back(Json::array({left, right}));
    // Two ways to one string share one id, as vocabularies are keyed by the string.
    const auto [entry, fresh] = known.emplace(whole, static_cast<std::int32_t>(size()));
    pairs.merge(pair, entry->second);
    if (fresh) pieces.push_back(std::move(whole));
    const std::int64_t done = static_cast<std::int64_t>(merges.size());
    if (options.progress && (done % 256 == 0 || size() == options.vocab))
      options.progress(done, total);
  }
  // An ordered object is searched from its front at every insertion by name; a text is not.
  std::string vocab = "{";
  for (std::size_t i = 0; i < pieces.size(); ++i)
    vocab += str(i ? "," : "", "\n", Json(pieces[i]).dump(), ":", i);
  vocab += "\n}";
  std::string file = describe(options, "@vocab@", merges).dump();
  file.replace(file.find("\"@vocab@\""), 9, vocab);
  return file + "\n";
}

std::int64_t train_tokenizer(const std::vector<std::string>& sources, const std::string& text_field,
                             const TrainerOptions& options, const std::string& out) {
  TokenizerTrainer trainer(options);
  for (const std::string& source : sources)
    for_each_document(source, text_field, false, [&](std::string_view text) { trainer.add(text); });
  write_file(out, trainer.finish());
  return open_tokenizer(out)->vocab_size();
}

}  // namespace tutti::data
