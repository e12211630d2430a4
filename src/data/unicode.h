// UTF-8 and Unicode normal forms, as tokenizers need them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::data {

// The length of the sequence that starts at text[at] of valid UTF-8.
inline std::size_t utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
void append_utf8(std::string& out, char32_t point);
char32_t decode_utf8(std::string_view text, std::size_t at, std::size_t& length);

// Each maximal ill-formed part becomes one U+FFFD (Unicode 15, section 3.9, "best practice").
std::string lossy_utf8(std::string_view bytes);
// Bytes at the end of `bytes` that may still become a valid sequence; 0 to 3.
std::size_t incomplete_tail(std::string_view bytes);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalize(std::string_view text, NormalForm form);

// Unicode's White_Space, and what counts as part of a word.
bool is_white_space(char32_t point);
bool is_word(char32_t point);

}  // namespace tutti::data
