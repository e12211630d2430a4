// Text to token ids and back. Three kinds behind one interface:
//   bytes                  ids 0..255 are the bytes; any bytes; no end-of-document token.
//   tokenizer.json         Hugging Face, BPE kind (GPT-2, Llama 3, Qwen, Llama 2 and the like).
//   *.model                SentencePiece, unigram and BPE.
// All are immutable after opening and safe to share between threads.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // No special tokens are put around the text; special tokens written in it are recognised (as the
  // `tokenizers` library does). `text` must be UTF-8, save for "bytes": WorldError names the
  // offset.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // encode() with what the file's post-processor adds (Llama's <s>, SentencePiece's bos).
  virtual std::vector<std::int32_t> encode_with_special(std::string_view text) const {
    return encode(text);
  }
  // Special tokens are written out. Bytes that form no UTF-8 become U+FFFD (not for "bytes").
  // An id outside [0, vocab_size) is a WorldError naming it.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  // One past the largest id, added tokens and holes included.
  virtual std::int64_t vocab_size() const = 0;
  // What is put after each document: eos, <|endoftext|>, <|end_of_text|>, </s>; none for "bytes".
  virtual std::optional<std::int32_t> end_of_document() const = 0;
  virtual const std::string& name() const = 0;
  // XXH3 of the definition; corpora remember it.
  virtual std::uint64_t hash() const = 0;
  // The id of a whole piece ("<|endoftext|>"), if there is one.
  virtual std::optional<std::int32_t> id_of(std::string_view piece) const = 0;
};

// spec: "bytes" | a tokenizer.json | a folder with tokenizer.json or tokenizer.model | a .model.
// ConfigError names parts of the file that are not supported, and what is wrong with a bad file.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& spec);

// Ids one at a time to text, for streaming: push() returns the text that is certain by now and
// never half a UTF-8 sequence; all pushes and finish() together give decode(all ids).
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(std::int32_t id);
  std::string finish();

 private:
  std::string emit(bool last);
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;  // since the last place where the text was whole
  std::size_t context_ = 0;        // ids at the front that were emitted and are kept as context
};

}  // namespace tutti::data
