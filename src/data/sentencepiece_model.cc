#include "data/sentencepiece_model.h"

#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "data/unicode.h"

namespace tutti::data {
namespace {

// The fields of one protobuf message, one after another.
class Message {
 public:
  Message(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t tag = varint();
    field = static_cast<int>(tag >> 3);
    number = 0;
    text = {};
    switch (tag & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        text = take(varint());
        break;
      case 5:
        text = take(4);
        break;
      default:
        damaged();
    }
    return true;
  }
  float real() const {
    float value = 0;
    if (text.size() != sizeof value) damaged();
    std::memcpy(&value, text.data(), sizeof value);
    return value;
  }
  int integer() const { return static_cast<int>(static_cast<std::int64_t>(number)); }
  [[noreturn]] void damaged() const {
    throw ConfigError(str(name_, " is not a sound SentencePiece model"));
  }

  int field = 0;
  std::uint64_t number = 0;
  std::string_view text;

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
    damaged();
  }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) damaged();
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view bytes_;
  const std::string& name_;
};

SentencePieceModel::Piece read_piece(Message message) {
  SentencePieceModel::Piece piece;
  while (message.next()) {
    if (message.field == 1) piece.text = message.text;
    if (message.field == 2) piece.score = message.real();
    if (message.field == 3) piece.type = message.integer();
  }
  return piece;
}

void read_trainer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    switch (message.field) {
      case 3:
        model.kind = message.integer();
        break;
      case 24:
        if (message.number)
          throw ConfigError("SentencePiece: treat_whitespace_as_suffix is not supported");
        break;
      case 35:
        model.byte_fallback = message.number != 0;
        break;
      case 40:
        model.unk_id = message.integer();
        break;
      case 41:
        model.bos_id = message.integer();
        break;
      case 42:
        model.eos_id = message.integer();
        break;
      case 44:
        model.unk_surface = message.text;
        break;
      default:
        break;
    }
  }
}

void read_normalizer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    if (message.field == 2) model.charsmap = message.text;
    if (message.field == 3) model.add_dummy_prefix = message.number != 0;
    if (message.field == 4) model.remove_extra_whitespaces = message.number != 0;
    if (message.field == 5) model.escape_whitespaces = message.number != 0;
  }
}

void check(const SentencePieceModel& model, const std::string& name) {
  const auto wrong = [&](const std::string& what) {
    throw ConfigError(str(name, " is not a usable SentencePiece model: ", what));
  };
  if (model.pieces.empty()) wrong("no pieces");
  if (model.kind != SentencePieceModel::unigram && model.kind != SentencePieceModel::bpe)
    wrong("only the kinds unigram and BPE are supported");
  const auto size = static_cast<int>(model.pieces.size());
  for (const int id : {model.unk_id, model.bos_id, model.eos_id})
    if (id >= size) wrong(str("id ", id, " of a special piece is beyond the vocabulary"));
  if (model.unk_id < 0) wrong("no unknown piece");
  for (const auto& piece : model.pieces)
    if (!valid_utf8(piece.text)) wrong("a piece is not UTF-8");
  std::uint32_t trie = 0;
  if (model.charsmap.empty()) return;
  if (model.charsmap.size() < 4) wrong("normaliser cut short");
  std::memcpy(&trie, model.charsmap.data(), 4);
  if (trie % 4 != 0 || trie < 4 || trie > model.charsmap.size() - 4 ||
      model.charsmap.back() != '\0')
    wrong("normaliser damaged");
}

// Darts-clone double array: the longest key that text[at..] starts with, as (length, value).
struct Found {
  std::size_t length = 0;
  std::uint32_t value = 0;
};
Found longest_rule(const std::string& charsmap, std::string_view text, std::size_t at) {
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, charsmap.data(), 4);
  const std::uint32_t units = bytes / 4;
  const auto unit_at = [&](std::uint32_t i) {
    std::uint32_t unit = 0;
    if (i < units) std::memcpy(&unit, charsmap.data() + 4 + std::size_t{i} * 4, 4);
    return unit;
  };
  const auto offset = [](std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  Found found;
  std::uint32_t node = offset(unit_at(0));
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto label = static_cast<unsigned char>(text[i]);
    node ^= label;
    const std::uint32_t unit = unit_at(node);
    if ((unit & ((1u << 31) | 0xFF)) != label || node >= units) break;
    node ^= offset(unit);
    if (unit >> 8 & 1) found = {i + 1 - at, unit_at(node) & 0x7FFFFFFF};
  }
  return found;
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view content, const std::string& name) {
  SentencePieceModel model;
  Message message(content, name);
  while (message.next()) {
    if (message.field == 1) model.pieces.push_back(read_piece({message.text, name}));
    if (message.field == 2) read_trainer({message.text, name}, model);
    if (message.field == 3) read_normalizer({message.text, name}, model);
  }
  check(model, name);
  return model;
}

void PieceTrie::add(std::string_view text, std::int32_t id) {
  std::uint64_t node = 0;
  for (const char c : text) {
    const auto [next, fresh] =
        next_.try_emplace(node << 8 | static_cast<unsigned char>(c), ids_.size());
    if (fresh) ids_.push_back(-1);
    node = next->second;
  }
  if (!text.empty()) ids_[node] = id;
}

std::string normalize_sentencepiece(const SentencePieceModel& model, const PieceTrie& user,
                                    std::string_view text) {
  constexpr std::string_view mark = "\xE2\x96\x81";
  const std::string_view space = model.escape_whitespaces ? mark : " ";
  std::size_t at = 0;
  const auto step = [&](std::size_t& length) -> std::string_view {
    length = 0;
    user.prefixes(text, at, [&](std::size_t matched, std::int32_t) { length = matched; });
    if (length > 0) return text.substr(at, length);
    if (!model.charsmap.empty()) {
      const Found found = longest_rule(model.charsmap, text, at);
      std::uint32_t trie = 0;
      std::memcpy(&trie, model.charsmap.data(), 4);
      const std::size_t where = std::size_t{4} + trie + found.value;
      if (found.length > 0 && where < model.charsmap.size())
        return length = found.length, std::string_view(model.charsmap.data() + where);
    }
    length = utf8_length(static_cast<unsigned char>(text[at]));
    return text.substr(at, length);
  };
  std::size_t length = 0;
  while (model.remove_extra_whitespaces && at < text.size() && step(length) == " ") at += length;
  std::string out;
  if (at == text.size()) return out;
  if (model.add_dummy_prefix) out += space;
  bool after_space = model.remove_extra_whitespaces;
  for (; at < text.size(); at += length) {
    std::string_view part = step(length);
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    for (const char c : part) {
      if (c == ' ')
        out += space;
      else
        out += c;
    }
    if (!part.empty()) after_space = part.ends_with(' ');
    if (!model.remove_extra_whitespaces) after_space = false;
  }
  while (model.remove_extra_whitespaces && out.ends_with(space))
    out.resize(out.size() - space.size());
  return out;
}

}  // namespace tutti::data
