#include "data/unicode.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/ustring.h>

#include <vector>

#include "base/error.h"

namespace tutti::data {

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | (c >> 6)), put(0x80 | (c & 63));
  if (c < 0x10000) return put(0xE0 | (c >> 12)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  put(0xF0 | (c >> 18)), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)),
      put(0x80 | (c & 63));
}

char32_t decode_utf8(std::string_view text, std::size_t at, std::size_t& length) {
  const auto lead = static_cast<unsigned char>(text[at]);
  length = utf8_length(lead);
  if (length == 1) return lead;
  char32_t c = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i)
    c = c << 6 | (static_cast<unsigned char>(text[at + i]) & 63u);
  return c;
}

namespace {

// How many bytes at `at` begin a well-formed sequence; *whole if it is complete.
std::size_t well_formed_prefix(std::string_view bytes, std::size_t at, bool* whole) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(at);
  *whole = lead < 0x80;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = utf8_length(static_cast<unsigned char>(lead));
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xBF)
    if (at + i == bytes.size() || byte(at + i) < low || byte(at + i) > high) return i;
  *whole = true;
  return length;
}

}  // namespace

std::string lossy_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    bool whole = false;
    const std::size_t length = well_formed_prefix(bytes, at, &whole);
    if (whole)
      out += bytes.substr(at, length);
    else
      out += "\xEF\xBF\xBD";
    at += length > 0 ? length : 1;
  }
  return out;
}

std::size_t incomplete_tail(std::string_view bytes) {
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    bool whole = false;
    if (well_formed_prefix(bytes, bytes.size() - back, &whole) == back && !whole) return back;
  }
  return 0;
}

std::string normalize(std::string_view text, NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* normalizer = form == NormalForm::nfc    ? unorm2_getNFCInstance(&error)
                                   : form == NormalForm::nfd  ? unorm2_getNFDInstance(&error)
                                   : form == NormalForm::nfkc ? unorm2_getNFKCInstance(&error)
                                                              : unorm2_getNFKDInstance(&error);
  std::vector<UChar> wide(text.size() + 1), out(text.size() + 64);
  std::int32_t length = 0, written = 0, bytes = 0;
  u_strFromUTF8(wide.data(), static_cast<std::int32_t>(wide.size()), &length, text.data(),
                static_cast<std::int32_t>(text.size()), &error);
  written = unorm2_normalize(normalizer, wide.data(), length, out.data(),
                             static_cast<std::int32_t>(out.size()), &error);
  if (error == U_BUFFER_OVERFLOW_ERROR) {
    error = U_ZERO_ERROR;
    out.resize(static_cast<std::size_t>(written) + 1);
    written = unorm2_normalize(normalizer, wide.data(), length, out.data(),
                               static_cast<std::int32_t>(out.size()), &error);
  }
  std::string result(static_cast<std::size_t>(written) * 3, '\0');
  u_strToUTF8(result.data(), static_cast<std::int32_t>(result.size()), &bytes, out.data(), written,
              &error);
  if (U_FAILURE(error)) throw WorldError(str("cannot normalize text: ", u_errorName(error)));
  result.resize(static_cast<std::size_t>(bytes));
  return result;
}

bool is_white_space(char32_t point) { return u_isUWhiteSpace(static_cast<UChar32>(point)); }

bool is_word(char32_t point) {
  const auto c = static_cast<UChar32>(point);
  const std::uint32_t mask = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_isUAlphabetic(c) || (U_GET_GC_MASK(c) & mask) || point == 0x200C || point == 0x200D;
}

}  // namespace tutti::data
