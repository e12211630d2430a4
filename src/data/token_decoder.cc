#include "base/error.h"
#include "data/regex.h"
#include "data/text_pipeline.h"
#include "data/unicode.h"

namespace tutti::data {
namespace {

using Part = nlohmann::json;
using Tokens = std::vector<std::string>;

std::array<std::string, 256> make_alphabet() {
  std::array<std::string, 256> alphabet;
  char32_t spare = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    append_utf8(alphabet[byte], printable ? byte : spare++);
  }
  return alphabet;
}

// -1 where no byte maps to the code point.
std::array<int, 512> make_inverse() {
  std::array<int, 512> inverse;
  inverse.fill(-1);
  std::size_t length = 0;
  for (int byte = 0; byte < 256; ++byte)
    inverse[decode_utf8(byte_level_alphabet()[static_cast<std::size_t>(byte)], 0, length)] = byte;
  return inverse;
}

std::string joined(const Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

Tokens decode_byte_level(const Tokens& tokens) {
  std::string all, bytes;
  for (const std::string& token : tokens) all += from_byte_level(token, bytes) ? bytes : token;
  return {lossy_utf8(all)};
}

int byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const std::string digits = token.substr(3, 2);
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return -1;
  return std::stoi(digits, nullptr, 16);
}

// A run of byte tokens becomes its text if that is UTF-8, else one U+FFFD a byte.
Tokens decode_byte_fallback(const Tokens& tokens) {
  Tokens out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    std::string text;
    if (lossy_utf8(run) == run)
      text = run;
    else
      for (std::size_t i = 0; i < run.size(); ++i) text += "\xEF\xBF\xBD";
    out.push_back(text);
    run.clear();
  };
  for (const std::string& token : tokens) {
    const int byte = byte_of(token);
    if (byte >= 0) {
      run += static_cast<char>(byte);
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

TokenDecoder strip_decoder(const Part& part) {
  const std::string content = part.at("content");
  const int start = part.at("start"), stop = part.at("stop");
  return [=](Tokens tokens) {
    for (std::string& token : tokens) {
      for (int i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
      for (int i = 0; i < stop && token.ends_with(content); ++i)
        token.erase(token.size() - content.size());
    }
    return tokens;
  };
}

TokenDecoder metaspace_decoder(const Part& part) {
  const Regex mark = Regex::literal(part.value("replacement", "\xE2\x96\x81"));
  const bool prepended = part.value("prepend_scheme", "always") != "never";
  return [=](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = mark.replace(tokens[i], i == 0 && prepended ? "" : " ");
    return tokens;
  };
}

}  // namespace

const std::array<std::string, 256>& byte_level_alphabet() {
  static const std::array<std::string, 256> alphabet = make_alphabet();
  return alphabet;
}

bool from_byte_level(std::string_view token, std::string& bytes) {
  static const std::array<int, 512> inverse = make_inverse();
  bytes.clear();
  std::size_t length = 0;
  for (std::size_t at = 0; at < token.size(); at += length) {
    const char32_t point = decode_utf8(token, at, length);
    if (point >= inverse.size() || inverse[point] < 0) return false;
    bytes += static_cast<char>(inverse[point]);
  }
  return true;
}

TokenDecoder make_token_decoder(const Part& part) {
  if (part.is_null()) return {};
  const std::string type = part.at("type");
  if (type == "ByteLevel") return decode_byte_level;
  if (type == "ByteFallback") return decode_byte_fallback;
  if (type == "Fuse") return [](const Tokens& tokens) { return Tokens{joined(tokens)}; };
  if (type == "Strip") return strip_decoder(part);
  if (type == "Metaspace") return metaspace_decoder(part);
  if (type == "Replace") {
    const Part& pattern = part.at("pattern");
    const Regex regex = pattern.contains("Regex")
                            ? Regex(pattern.at("Regex").get<std::string>())
                            : Regex::literal(pattern.at("String").get<std::string>());
    return [regex, by = part.at("content").get<std::string>()](Tokens tokens) {
      for (std::string& token : tokens) token = regex.replace(token, by);
      return tokens;
    };
  }
  if (type != "Sequence")
    throw ConfigError(str("tokenizer.json: decoder ", type, " is not supported"));
  std::vector<TokenDecoder> steps;
  for (const Part& step : part.at("decoders")) steps.push_back(make_token_decoder(step));
  return [steps](Tokens tokens) {
    for (const TokenDecoder& step : steps) tokens = step(std::move(tokens));
    return tokens;
  };
}

}  // namespace tutti::data
