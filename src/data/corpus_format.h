// The header of a tokenized corpus, as it lies on disk (docs/formats/corpus.md). Little-endian.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/hash.h"

namespace tutti::data {

inline constexpr std::array<char, 8> corpus_magic = {'T', 'U', 'T', 'T', 'I', 'C', 'R', 'P'};
inline constexpr std::uint32_t corpus_version = 1;
inline constexpr std::size_t checksum_block = 1 << 20;

struct CorpusHeader {
  std::array<char, 8> magic = corpus_magic;
  std::uint32_t version = corpus_version;
  std::uint32_t token_bytes = 4;  // 1, 2, 4
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t vocab = 0;
  std::uint64_t text_bytes = 0;
  std::uint64_t tokenizer_hash = 0;
  std::uint64_t token_checksum = 0;
  std::uint64_t offset_checksum = 0;
  std::array<char, 48> tokenizer_name = {};  // cut to 47 bytes, zero-filled
  std::uint64_t header_checksum = 0;         // hash64 of all bytes before it
};
static_assert(sizeof(CorpusHeader) == 128);

// hash64 chained over blocks of 1 MiB, so that a writer needs no second pass.
inline std::uint64_t chained_hash(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0;
  for (std::size_t at = 0; at < bytes.size(); at += checksum_block)
    hash = hash64(bytes.subspan(at, std::min(checksum_block, bytes.size() - at)), hash);
  return hash;
}

inline std::uint64_t header_hash(const CorpusHeader& header) {
  return hash64(
      std::as_bytes(std::span(&header, 1)).first(offsetof(CorpusHeader, header_checksum)));
}

// Where the document table starts: after the tokens, rounded up to 8.
inline std::uint64_t offsets_at(const CorpusHeader& header) {
  return sizeof(CorpusHeader) + (header.tokens * header.token_bytes + 7) / 8 * 8;
}

}  // namespace tutti::data
