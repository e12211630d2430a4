// Tokenized text as a memory-mapped file (docs/formats/corpus.md), and how one is made from
// sources.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "data/tokenizer.h"

namespace tutti::data {

// --- sources -------------------------------------------------------------------------------------

using DocumentSink = std::function<void(std::string_view text)>;

// Hands on each document of a source: a file (one document), a folder (each file below it, sorted
// by path; names that start with '.' are left out), a .jsonl (the `text_field` of each line).
// ConfigError: absent, empty; not UTF-8 unless any_bytes (file and byte offset); a wrong JSONL line
// (file:line). WorldError: unreadable.
void for_each_document(const std::string& source, const std::string& text_field, bool any_bytes,
                       const DocumentSink& sink);

// --- the tokenized corpus ------------------------------------------------------------------------

// Immutable; threads may share it.
class Corpus {
 public:
  // Maps a .tutti file and checks header, length and document table; `verify` reads all the tokens
  // and checks their checksum. WorldError names path and damage.
  static Corpus open(const fs::path& path, bool verify = false);
  // A corpus in memory, for tests and programs. offsets: first token of each document and the end.
  static Corpus in_memory(std::vector<std::int32_t> tokens, std::vector<std::uint64_t> offsets,
                          std::int64_t vocab = 1 << 30);

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t documents() const { return offsets_.size() - 1; }
  // Token positions at which documents start, and tokens() at the end.
  std::span<const std::uint64_t> offsets() const { return offsets_; }
  // Copies tokens [first, first + out.size()); must lie inside.
  void read(std::uint64_t first, std::span<std::int32_t> out) const;
  std::int32_t token(std::uint64_t position) const;
  // The document that token `position` belongs to.
  std::uint64_t document_of(std::uint64_t position) const;

  std::uint64_t tokenizer_hash() const { return tokenizer_hash_; }
  std::int64_t vocab() const { return vocab_; }
  std::uint64_t checksum() const { return checksum_; }  // of the tokens; in memory: 0
  const std::string& tokenizer_name() const { return tokenizer_name_; }
  const std::string& path() const { return path_; }
  int token_bytes() const { return token_bytes_; }          // 1, 2 or 4
  std::uint64_t text_bytes() const { return text_bytes_; }  // of the text it was made from

 private:
  std::string path_;
  std::uint64_t checksum_ = 0;
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const std::vector<std::int32_t>> memory_;
  std::shared_ptr<const std::vector<std::uint64_t>> owned_offsets_;
  const std::byte* data_ = nullptr;
  std::span<const std::uint64_t> offsets_;
  std::uint64_t tokens_ = 0;
  std::uint64_t tokenizer_hash_ = 0;
  std::uint64_t text_bytes_ = 0;
  std::int64_t vocab_ = 0;
  std::string tokenizer_name_;
  int token_bytes_ = 4;
};

struct TokenizeProgress {
  std::uint64_t documents = 0, bytes = 0, tokens = 0;
};
struct TokenizeOptions {
  std::string text_field = "text";
  std::function<void(const TokenizeProgress&)> progress;  // every few MB; may be empty
};

// `tutti tokenize`: writes `out` beside, makes it durable, renames. Returns the totals. The
// tokenizer's end_of_document, if any, follows each document.
TokenizeProgress tokenize_to_file(const std::vector<std::string>& sources,
                                  const Tokenizer& tokenizer, const fs::path& out,
                                  const TokenizeOptions& options = {});

// A source as a corpus: a .tutti file is opened (ConfigError if another tokenizer made it); all
// else is tokenized once into `cache` (default: $TUTTI_CACHE, $XDG_CACHE_HOME/tutti or
// ~/.cache/tutti;
// "" and no home: $TMPDIR) under the hash of (tokenizer, paths, sizes, times). Several processes
// may ask at once: each writes aside and renames.
Corpus open_source(const std::string& source, const Tokenizer& tokenizer,
                   const TokenizeOptions& options = {}, const fs::path& cache = {});

}  // namespace tutti::data
