#include "data/sentencepiece.h"

#include <algorithm>
#include <cfloat>
#include <queue>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/bpe.h"
#include "data/sentencepiece_model.h"
#include "data/unicode.h"

namespace tutti::data {
namespace {

using Model = SentencePieceModel;
constexpr std::string_view mark = "\xE2\x96\x81";

struct Segment {
  std::string_view text;
  std::int32_t id;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(Model model, const std::string& name, std::uint64_t hash);

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::vector<std::int32_t> encode_with_special(std::string_view text) const override {
    std::vector<std::int32_t> ids = encode(text);
    if (model_.bos_id >= 0) ids.insert(ids.begin(), model_.bos_id);
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(model_.pieces.size());
  }
  std::optional<std::int32_t> end_of_document() const override {
    if (model_.eos_id < 0) return std::nullopt;
    return model_.eos_id;
  }
  const std::string& name() const override { return name_; }
  std::uint64_t hash() const override { return hash_; }
  std::optional<std::int32_t> id_of(std::string_view piece) const override {
    for (const auto* map : {&reserved_, &ids_})
      if (const auto found = map->find(piece); found != map->end()) return found->second;
    return std::nullopt;
  }

 private:
  std::vector<Segment> unigram(std::string_view text) const;
  std::vector<Segment> bpe(std::string_view text) const;
  void resegment(std::string_view text, const StringMap<std::size_t>& parts,
                 std::vector<Segment>& out) const;

  Model model_;
  std::string name_;
  std::uint64_t hash_;
  StringMap<std::int32_t> ids_, reserved_;  // matched in text; never matched in text
  PieceTrie trie_, user_;
  std::int32_t byte_ids_[256];
  float min_score_ = FLT_MAX, max_score_ = FLT_MIN;
};

SentencePieceTokenizer::SentencePieceTokenizer(Model model, const std::string& name,
                                               std::uint64_t hash)
    : model_(std::move(model)), name_(name), hash_(hash) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
    const Model::Piece& piece = model_.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    const bool matched = piece.type == Model::normal || piece.type == Model::user_defined ||
                         piece.type == Model::unused;
    (matched ? ids_ : reserved_).emplace(piece.text, id);
    if (matched) trie_.add(piece.text, id);
    if (piece.type == Model::user_defined) user_.add(piece.text, id);
    if (piece.type == Model::byte && piece.text.size() == 6)
      byte_ids_[std::strtoul(piece.text.substr(3, 2).c_str(), nullptr, 16) & 255] = id;
    if (piece.type != Model::normal) continue;
    min_score_ = std::min(min_score_, piece.score);
    max_score_ = std::max(max_score_, piece.score);
  }
}

// The best path (Viterbi); an unknown character costs 10 more than the worst piece.
std::vector<Segment> SentencePieceTokenizer::unigram(std::string_view text) const {
  struct Node {
    std::int32_t id = -1;
    float score = 0;
    std::size_t from = SIZE_MAX;
  };
  std::vector<Node> ends(text.size() + 1);
  const float unknown_score = min_score_ - 10.0f;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t character = utf8_length(static_cast<unsigned char>(text[at]));
    const float here = ends[at].score;
    bool single = false;
    trie_.prefixes(text, at, [&](std::size_t length, std::int32_t id) {
      const Model::Piece& piece = model_.pieces[static_cast<std::size_t>(id)];
      if (piece.type == Model::unused) return;
      const double score = piece.type == Model::user_defined
                               ? static_cast<float>(length) * max_score_ - 0.1
                               : static_cast<double>(piece.score);
      Node& node = ends[at + length];
      const float total = static_cast<float>(score + here);  // Rounded first: ties decide as there.
      if (node.from == SIZE_MAX || total > node.score) node = {id, total, at};
      single |= length == character;
    });
    Node& node = ends[at + character];
    if (!single && (node.from == SIZE_MAX || unknown_score + here > node.score))
      node = {model_.unk_id, unknown_score + here, at};
    at += character;
  }
  std::vector<Segment> path;
  for (std::size_t end = text.size(); end > 0; end = ends[end].from)
    path.push_back({text.substr(ends[end].from, end - ends[end].from), ends[end].id});
  std::reverse(path.begin(), path.end());
  return path;
}

struct Symbol {
  std::string_view text;
  std::int32_t before, next;
  bool frozen;
};
struct Pair {
  float score;
  std::int32_t left, right;
  std::size_t size;
  bool operator<(const Pair& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

// Pieces that may arise in merging but not in the result are taken apart as they were made.
void SentencePieceTokenizer::resegment(std::string_view text, const StringMap<std::size_t>& parts,
                                       std::vector<Segment>& out) const {
  const std::int32_t id = id_of(text).value_or(model_.unk_id);
  const auto made = parts.find(text);
  if (model_.pieces[static_cast<std::size_t>(id)].type != Model::unused || made == parts.end()) {
    out.push_back({text, id});
    return;
  }
  resegment(text.substr(0, made->second), parts, out);
  resegment(text.substr(made->second), parts, out);
}

std::vector<Segment> SentencePieceTokenizer::bpe(std::string_view text) const {
  std::vector<Symbol> symbols;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    length = 0;
    user_.prefixes(text, at, [&](std::size_t matched, std::int32_t) { length = matched; });
    const bool frozen = length > 0;
    if (!frozen) length = utf8_length(static_cast<unsigned char>(text[at]));
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({text.substr(at, length), index - 1, index + 1, frozen});
  }
  if (symbols.empty()) return {};
  symbols.back().next = -1;
  std::priority_queue<Pair> agenda;
  StringMap<std::size_t> parts;
  const auto symbol = [&](std::int32_t i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  const auto offer = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0 || symbol(left).frozen || symbol(right).frozen) return;
    const std::string_view whole(symbol(left).text.data(),
                                 symbol(left).text.size() + symbol(right).text.size());
    const auto found = ids_.find(whole);
    if (found == ids_.end()) return;
    const Model::Piece& piece = model_.pieces[static_cast<std::size_t>(found->second)];
    agenda.push({piece.score, left, right, whole.size()});
    if (piece.type == Model::unused) parts[std::string(whole)] = symbol(left).text.size();
  };
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) offer(i, i + 1);
  while (!agenda.empty()) {
    const Pair top = agenda.top();
    agenda.pop();
    Symbol& left = symbol(top.left);
    Symbol& right = symbol(top.right);
    if (left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != top.size)
      continue;
    left.text = {left.text.data(), top.size};
    right.text = {};
    left.next = right.next;
    if (right.next >= 0) symbol(right.next).before = top.left;
    offer(left.before, top.left);
    offer(top.left, left.next);
  }
  std::vector<Segment> out;
  for (std::int32_t i = 0; i >= 0; i = symbol(i).next) resegment(symbol(i).text, parts, out);
  return out;
}

std::vector<std::int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  std::size_t bad = 0;
  if (!valid_utf8(text, &bad)) throw WorldError(str("text is not UTF-8: bad byte at offset ", bad));
  const std::string normal = normalize_sentencepiece(model_, user_, text);
  const std::vector<Segment> path = model_.kind == Model::bpe ? bpe(normal) : unigram(normal);
  std::vector<std::int32_t> ids;
  bool after_unknown = false;
  for (const Segment& segment : path) {
    const bool unknown = segment.id == model_.unk_id;
    if (unknown && model_.byte_fallback) {
      for (const char byte : segment.text) {
        const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
        ids.push_back(id >= 0 ? id : model_.unk_id);
      }
    } else if (!unknown || !after_unknown) {
      ids.push_back(segment.id);  // A run of unknown characters is one unknown piece.
    }
    after_unknown = unknown;
  }
  return ids;
}

std::string bytes_to_text(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = utf8_length(static_cast<unsigned char>(bytes[at]));
    const std::string_view part = bytes.substr(at, length);
    const bool whole = part.size() == length && valid_utf8(part);
    text += whole ? part : "\xEF\xBF\xBD";
    at += whole ? length : 1;
  }
  return text;
}

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text, bytes;
  bool at_start = true, mark_seen = false;
  const auto flush = [&] {
    text += bytes_to_text(bytes);
    bytes.clear();
  };
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= model_.pieces.size())
      throw WorldError(str("token id ", id, " is beyond the vocabulary of ", model_.pieces.size(),
                           " (", name_, ")"));
    const Model::Piece& piece = model_.pieces[static_cast<std::size_t>(id)];
    if (piece.type == Model::byte && piece.text.size() == 6) {
      bytes += static_cast<char>(std::strtoul(piece.text.substr(3, 2).c_str(), nullptr, 16));
      continue;
    }
    flush();
    if (mark_seen || !text.empty()) at_start = false;
    if (piece.type == Model::control) continue;
    if (piece.type == Model::unknown) {
      text += model_.unk_surface;
      continue;
    }
    std::string_view part = piece.text;
    if (at_start && (model_.add_dummy_prefix || model_.remove_extra_whitespaces) &&
        part.starts_with(mark)) {
      part.remove_prefix(mark.size());
      mark_seen = !model_.remove_extra_whitespaces;
    }
    for (std::size_t at = 0; at < part.size();) {
      const bool space = part.substr(at).starts_with(mark);
      text += space ? ' ' : part[at];
      at += space ? mark.size() : 1;
    }
  }
  flush();
  return text;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view content, const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(parse_sentencepiece_model(content, name), name,
                                                  hash64(content));
}

}  // namespace tutti::data
