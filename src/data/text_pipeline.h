// What a tokenizer.json does to text before and after the model: normalizers, pre-tokenizers and
// decoders, built from its JSON. Parts that are not supported are a ConfigError naming them.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

// The pieces of one stretch of text; they point into the text or into `owned`.
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;
  bool at_start = false;  // the stretch begins the text
};

using Normalizer = std::function<std::string(std::string_view)>;
using PreTokenizer = std::function<void(Pieces&)>;
using TokenDecoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// Null JSON gives an empty function.
Normalizer make_normalizer(const nlohmann::json& part);
// *byte_level is set if the words are to be taken as bytes: the model then works on bytes.
PreTokenizer make_pre_tokenizer(const nlohmann::json& part, bool* byte_level);
TokenDecoder make_token_decoder(const nlohmann::json& part);

// GPT-2's reversible map of bytes to printable code points (Radford et al. 2019).
const std::array<std::string, 256>& byte_level_alphabet();
// The byte string behind a token of that alphabet; false if it has another character.
bool from_byte_level(std::string_view token, std::string& bytes);

extern const char* const gpt2_pattern;
extern const char* const llama3_pattern;
extern const char* const qwen_pattern;

}  // namespace tutti::data
