#include "data/hugging_face_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/added_tokens.h"
#include "data/bpe.h"
#include "data/text_pipeline.h"
#include "data/unicode.h"

namespace tutti::data {
namespace {

using nlohmann::json;
constexpr std::int32_t max_id = 1 << 24;

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(const json& file, std::string_view content, const std::string& name,
                       const std::string& eos)
      : name_(name), hash_(hash64(content)) {
    normalizer_ = make_normalizer(file.value("normalizer", json()));
    pre_tokenizer_ = make_pre_tokenizer(file.value("pre_tokenizer", json()), &byte_level_);
    decoder_ = make_token_decoder(file.value("decoder", json()));
    read_model(file.at("model"));
    read_added(file.value("added_tokens", json::array()));
    read_post_processor(file.value("post_processor", json()));
    choose_end(eos);
  }

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::vector<std::int32_t> encode_with_special(std::string_view text) const override {
    std::vector<std::int32_t> ids = encode(text);
    ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
    ids.insert(ids.end(), suffix_.begin(), suffix_.end());
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(pieces_.size()); }
  std::optional<std::int32_t> end_of_document() const override { return end_; }
  const std::string& name() const override { return name_; }
  std::uint64_t hash() const override { return hash_; }
  std::optional<std::int32_t> id_of(std::string_view piece) const override {
    const auto found = ids_.find(piece);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

 private:
  void read_model(const json& model);
  void read_merges(const json& merges);
  void read_added(const json& tokens);
  void read_post_processor(const json& part);
  void choose_end(const std::string& eos);
  void set_piece(std::int64_t id, const std::string& piece);
  void encode_stretch(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> split_word(std::string_view word) const;
  void split_characters(std::string_view word, std::vector<std::int32_t>& ids) const;

  std::string name_;
  std::uint64_t hash_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  bool byte_level_ = false, byte_fallback_ = false, fuse_unk_ = false, ignore_merges_ = false;
  std::optional<std::int32_t> unk_, end_;
  StringMap<std::int32_t> ids_;    // of the written pieces
  StringMap<std::int32_t> words_;  // of model pieces as the model sees text: bytes if byte_level_
  std::vector<std::string> pieces_;
  std::array<std::int32_t, 256> byte_ids_{};  // of single bytes or of <0xXX>; -1: none
  MergeTable merges_;
  AddedTokens raw_added_, normalized_added_;
  std::vector<std::int32_t> prefix_, suffix_;
  mutable std::mutex cache_mutex_;
  mutable StringMap<std::vector<std::int32_t>> cache_;
};

void HuggingFaceTokenizer::set_piece(std::int64_t id, const std::string& piece) {
  if (id < 0 || id >= max_id) throw ConfigError(str(name_, ": id ", id, " is out of range"));
  if (pieces_.size() <= static_cast<std::size_t>(id))
    pieces_.resize(static_cast<std::size_t>(id) + 1);
  pieces_[static_cast<std::size_t>(id)] = piece;
  ids_[piece] = static_cast<std::int32_t>(id);
}

void refuse(bool present, const std::string& name, const char* what) {
  if (present) throw ConfigError(str(name, ": model.", what, " is not supported"));
}

bool given(const json& model, const char* field) {
  const auto found = model.find(field);
  return found != model.end() && !found->is_null() && *found != "" && *found != 0.0;
}

template <class T>
T value_or(const json& model, const char* field, T fallback) {
  const auto found = model.find(field);
  return found == model.end() || found->is_null() ? fallback : found->get<T>();
}

void HuggingFaceTokenizer::read_model(const json& model) {
  if (const std::string type = model.value("type", "BPE"); type != "BPE")
    throw ConfigError(str(name_, ": model ", type, " is not supported, only BPE"));
  for (const char* field : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    refuse(given(model, field), name_, field);
  byte_fallback_ = value_or(model, "byte_fallback", false);
  fuse_unk_ = value_or(model, "fuse_unk", false);
  ignore_merges_ = value_or(model, "ignore_merges", false);
  const json& vocab = model.at("vocab");
  if (!vocab.is_object()) throw ConfigError(str(name_, ": model.vocab must be an object"));
  std::string bytes;
  for (const auto& [piece, id] : vocab.items()) {
    const auto value = id.get<std::int64_t>();
    set_piece(value, piece);
    if (!byte_level_)
      words_[piece] = static_cast<std::int32_t>(value);
    else if (from_byte_level(piece, bytes))
      words_[bytes] = static_cast<std::int32_t>(value);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    static constexpr char hex[] = "0123456789ABCDEF";
    const std::string piece = byte_level_
                                  ? byte_level_alphabet()[byte]
                                  : std::string("<0x") + hex[byte / 16] + hex[byte % 16] + ">";
    byte_ids_[byte] = id_of(piece).value_or(-1);
  }
  if (given(model, "unk_token")) unk_ = id_of(model.at("unk_token").get<std::string>());
  read_merges(model.at("merges"));
}

void HuggingFaceTokenizer::read_merges(const json& merges) {
  merges_.reserve(merges.size());
  std::uint32_t rank = 0;
  for (const json& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const auto& both = merge.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      left = both.substr(0, space);
      right = space == std::string::npos ? "" : both.substr(space + 1);
    } else {
      left = merge.at(0).get<std::string>();
      right = merge.at(1).get<std::string>();
    }
    const auto a = id_of(left), b = id_of(right), whole = id_of(left + right);
    if (!a || !b || !whole)
      throw ConfigError(str(name_, ": merge ", rank, " (", left, " ", right,
                            ") names a token that the vocabulary lacks"));
    merges_.add(*a, *b, {rank++, *whole});
  }
}

void HuggingFaceTokenizer::read_added(const json& tokens) {
  for (const json& entry : tokens) {
    AddedToken token{.id = 0,
                     .content = entry.at("content").get<std::string>(),
                     .single_word = entry.value("single_word", false),
                     .lstrip = entry.value("lstrip", false),
                     .rstrip = entry.value("rstrip", false),
                     .normalized = entry.value("normalized", false),
                     .special = entry.value("special", false)};
    const auto id = entry.at("id").get<std::int64_t>();
    set_piece(id, token.content);
    token.id = static_cast<std::int32_t>(id);
    if (!token.normalized) {
      raw_added_.add(std::move(token));
      continue;
    }
    if (normalizer_) token.content = normalizer_(token.content);
    normalized_added_.add(std::move(token));
  }
}

void HuggingFaceTokenizer::read_post_processor(const json& part) {
  if (part.is_null()) return;
  const std::string type = part.at("type");
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const json& step : part.at("processors")) read_post_processor(step);
    return;
  }
  if (type != "TemplateProcessing")
    throw ConfigError(str(name_, ": post-processor ", type, " is not supported"));
  bool after = false;
  for (const json& step : part.at("single")) {
    if (step.contains("Sequence")) {
      after = true;
      continue;
    }
    const std::string id = step.at("SpecialToken").at("id");
    for (const json& value : part.at("special_tokens").at(id).at("ids"))
      (after ? suffix_ : prefix_).push_back(value.get<std::int32_t>());
  }
}

void HuggingFaceTokenizer::choose_end(const std::string& eos) {
  for (const char* usual :
       {"", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"}) {
    end_ = id_of(*usual ? usual : eos);
    if (end_) return;
  }
}

void HuggingFaceTokenizer::split_characters(std::string_view word,
                                            std::vector<std::int32_t>& ids) const {
  bool unknown = false;  // An unknown run is written when the next known character comes.
  for (std::size_t at = 0, length = 0; at < word.size(); at += length) {
    length = utf8_length(static_cast<unsigned char>(word[at]));
    const std::string_view character = word.substr(at, length);
    if (const auto found = words_.find(character); found != words_.end()) {
      if (unknown) ids.push_back(*unk_);
      unknown = false;
      ids.push_back(found->second);
      continue;
    }
    const auto known = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)] >= 0; };
    if (byte_fallback_ && std::all_of(character.begin(), character.end(), known)) {
      for (const char byte : character) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      continue;
    }
    if (!unk_) continue;
    if (unknown && !fuse_unk_) ids.push_back(*unk_);
    unknown = true;
  }
  if (unknown) ids.push_back(*unk_);
}

std::vector<std::int32_t> HuggingFaceTokenizer::split_word(std::string_view word) const {
  if (ignore_merges_)
    if (const auto found = words_.find(word); found != words_.end()) return {found->second};
  std::vector<std::int32_t> ids;
  if (byte_level_) {
    bool unknown = false;
    for (const char byte : word) {
      const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
      if (id < 0 && !unk_) continue;
      if (id >= 0 || !unknown || !fuse_unk_) ids.push_back(id >= 0 ? id : *unk_);
      unknown = id < 0;
    }
  } else {
    split_characters(word, ids);
  }
  merge_word(merges_, ids);
  return ids;
}

void HuggingFaceTokenizer::encode_word(std::string_view word,
                                       std::vector<std::int32_t>& ids) const {
  constexpr std::size_t max_word = 64, max_words = 1 << 16;
  const auto found = cache_.find(word);
  if (found != cache_.end()) {
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return;
  }
  std::vector<std::int32_t> made = split_word(word);
  ids.insert(ids.end(), made.begin(), made.end());
  if (word.size() <= max_word && cache_.size() < max_words)
    cache_.emplace(std::string(word), std::move(made));
}

void HuggingFaceTokenizer::encode_stretch(std::string_view text, bool at_start,
                                          std::vector<std::int32_t>& ids) const {
  Pieces pieces{.views = {text}, .owned = {}, .at_start = at_start};
  if (pre_tokenizer_) pre_tokenizer_(pieces);
  const std::unique_lock lock(cache_mutex_, std::try_to_lock);
  for (const std::string_view word : pieces.views) {
    if (word.empty()) continue;
    if (lock) {
      encode_word(word, ids);
      continue;
    }
    const std::vector<std::int32_t> made = split_word(word);
    ids.insert(ids.end(), made.begin(), made.end());
  }
}

std::vector<std::int32_t> HuggingFaceTokenizer::encode(std::string_view text) const {
  std::size_t bad = 0;
  if (!valid_utf8(text, &bad)) throw WorldError(str("text is not UTF-8: bad byte at offset ", bad));
  std::vector<std::int32_t> ids;
  std::vector<AddedTokens::Stretch> stretches, inner;
  raw_added_.cut(text, stretches);
  for (const auto& stretch : stretches) {
    if (stretch.id >= 0) {
      ids.push_back(stretch.id);
      continue;
    }
    const bool at_start = stretch.text.data() == text.data();
    const std::string normal = normalizer_ ? normalizer_(stretch.text) : std::string(stretch.text);
    inner.clear();
    normalized_added_.cut(normal, inner);
    for (const auto& part : inner) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_stretch(part.text, at_start && part.text.data() == normal.data(), ids);
    }
  }
  return ids;
}

std::string HuggingFaceTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= pieces_.size())
      throw WorldError(
          str("token id ", id, " is beyond the vocabulary of ", pieces_.size(), " (", name_, ")"));
    tokens.push_back(pieces_[static_cast<std::size_t>(id)]);
  }
  if (decoder_) tokens = decoder_(std::move(tokens));
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && !decoder_) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_hugging_face_tokenizer(std::string_view content,
                                                        const std::string& name,
                                                        const std::string& eos) {
  try {
    return std::make_unique<HuggingFaceTokenizer>(json::parse(content), content, name, eos);
  } catch (const json::exception& error) {
    throw ConfigError(str(name, " is not a sound tokenizer.json: ", error.what()));
  }
}

}  // namespace tutti::data
