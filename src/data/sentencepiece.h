// SentencePiece models (Kudo and Richardson 2018): unigram and BPE, with byte fallback,
// user-defined pieces and the precompiled normaliser. The protobuf and the double-array trie are
// read by hand.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace tutti::data {

// `content`: the .model file. ConfigError if it is damaged or of another kind (word, char).
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view content, const std::string& name);

}  // namespace tutti::data
