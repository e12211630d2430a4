#include "data/corpus.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/corpus_format.h"

namespace tutti::data {
namespace {

[[noreturn]] void damaged(const fs::path& path, const std::string& what) {
  throw WorldError(str(path.string(), " is not a sound tokenized corpus: ", what));
}

CorpusHeader read_header(const fs::path& path, std::span<const std::byte> bytes) {
  CorpusHeader header;
  if (bytes.size() < sizeof header) damaged(path, "shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != corpus_magic) damaged(path, "it does not begin with TUTTICRP");
  if (header.version != corpus_version)
    damaged(path, str("version ", header.version, ", this program reads ", corpus_version));
  if (header.header_checksum != header_hash(header))
    damaged(path, "the header's checksum is wrong");
  if (header.token_bytes != 1 && header.token_bytes != 2 && header.token_bytes != 4)
    damaged(path, str(header.token_bytes, " bytes a token"));
  const std::uint64_t limit = bytes.size();
  if (header.tokens > limit || header.documents > limit ||
      offsets_at(header) + (header.documents + 1) * 8 != limit)
    damaged(path, str(limit, " bytes long, which its header does not tell"));
  return header;
}

void check_offsets(const fs::path& path, std::span<const std::uint64_t> offsets,
                   const CorpusHeader& header) {
  if (chained_hash(std::as_bytes(offsets)) != header.offset_checksum)
    damaged(path, "the document table's checksum is wrong");
  if (offsets.front() != 0 || offsets.back() != header.tokens ||
      !std::is_sorted(offsets.begin(), offsets.end()))
    damaged(path, "the document table is out of order");
}

template <class T>
void widen(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<std::int32_t>(value);
  }
}

}  // namespace

Corpus Corpus::open(const fs::path& path, bool verify) {
  Corpus corpus;
  corpus.file_ = std::make_shared<MappedFile>(path);
  const std::span<const std::byte> bytes = corpus.file_->bytes();
  const CorpusHeader header = read_header(path, bytes);
  corpus.path_ = path.string();
  corpus.data_ = bytes.data() + sizeof header;
  corpus.offsets_ = {reinterpret_cast<const std::uint64_t*>(bytes.data() + offsets_at(header)),
                     static_cast<std::size_t>(header.documents) + 1};
  check_offsets(path, corpus.offsets_, header);
  corpus.tokens_ = header.tokens;
  corpus.checksum_ = header.token_checksum;
  corpus.token_bytes_ = static_cast<int>(header.token_bytes);
  corpus.vocab_ = static_cast<std::int64_t>(header.vocab);
  corpus.text_bytes_ = header.text_bytes;
  corpus.tokenizer_hash_ = header.tokenizer_hash;
  corpus.tokenizer_name_.assign(
      header.tokenizer_name.data(),
      ::strnlen(header.tokenizer_name.data(), header.tokenizer_name.size()));
  if (verify && chained_hash({corpus.data_, static_cast<std::size_t>(header.tokens) *
                                                header.token_bytes}) != header.token_checksum)
    damaged(path, "the tokens' checksum is wrong");
  return corpus;
}

Corpus Corpus::in_memory(std::vector<std::int32_t> tokens, std::vector<std::uint64_t> offsets,
                         std::int64_t vocab) {
  TUTTI_ASSERT(!offsets.empty() && offsets.front() == 0 && offsets.back() == tokens.size(),
               "offsets must run from 0 to the number of tokens");
  Corpus corpus;
  corpus.path_ = "(memory)";
  corpus.memory_ = std::make_shared<std::vector<std::int32_t>>(std::move(tokens));
  corpus.owned_offsets_ = std::make_shared<std::vector<std::uint64_t>>(std::move(offsets));
  corpus.data_ = reinterpret_cast<const std::byte*>(corpus.memory_->data());
  corpus.offsets_ = *corpus.owned_offsets_;
  corpus.tokens_ = corpus.text_bytes_ = corpus.memory_->size();
  corpus.vocab_ = vocab;
  return corpus;
}

void Corpus::read(std::uint64_t first, std::span<std::int32_t> out) const {
  TUTTI_ASSERT(first + out.size() <= tokens_, "token ", first, " + ", out.size(), " of ", tokens_);
  const std::byte* from = data_ + first * static_cast<std::uint64_t>(token_bytes_);
  if (token_bytes_ == 1) return widen<std::uint8_t>(from, out);
  if (token_bytes_ == 2) return widen<std::uint16_t>(from, out);
  widen<std::int32_t>(from, out);
}

std::int32_t Corpus::token(std::uint64_t position) const {
  std::int32_t value = 0;
  read(position, {&value, 1});
  return value;
}

std::uint64_t Corpus::document_of(std::uint64_t position) const {
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), position);
  return static_cast<std::uint64_t>(after - offsets_.begin()) - 1;
}

}  // namespace tutti::data
