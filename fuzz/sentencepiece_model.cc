// A SentencePiece .model from outside: either refused with ConfigError, or usable.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "data/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view content(reinterpret_cast<const char*>(bytes), size);
  try {
    const auto tokenizer = tutti::data::parse_sentencepiece(content, "fuzz");
    tokenizer->decode(tokenizer->encode(" the cat's 12 \xC3\xA9\xE2\x85\xA7\n"));
  } catch (const tutti::ConfigError&) {
  } catch (const tutti::WorldError&) {
  }
  return 0;
}
