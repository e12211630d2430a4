// A tokenizer.json from outside: either refused with ConfigError, or usable.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "data/hugging_face_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view content(reinterpret_cast<const char*>(bytes), size);
  try {
    const auto tokenizer = tutti::data::parse_hugging_face_tokenizer(content, "fuzz");
    tokenizer->decode(tokenizer->encode(" the cat's 12 \xC3\xA9<|endoftext|>\n"));
  } catch (const tutti::ConfigError&) {
  } catch (const tutti::WorldError&) {
  }
  return 0;
}
