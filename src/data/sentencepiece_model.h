// A SentencePiece .model as values (sentencepiece_model.proto), and its text normaliser.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tutti::data {

struct SentencePieceModel {
  enum Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    int type = normal;
  };
  enum Kind { unigram = 1, bpe = 2 };

  std::vector<Piece> pieces;
  int kind = unigram;
  bool byte_fallback = false;
  int unk_id = 0, bos_id = 1, eos_id = 2;
  std::string unk_surface = " \xE2\x81\x87 ";
  std::string charsmap;  // u32 size of a darts-clone trie, the trie, zero-terminated replacements
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// ConfigError naming `name` if `content` is damaged or not supported.
SentencePieceModel parse_sentencepiece_model(std::string_view content, const std::string& name);

// Byte strings to ids, for all prefixes at once.
class PieceTrie {
 public:
  void add(std::string_view text, std::int32_t id);
  // Calls visit(length, id) for each entry that text[at..] starts with, shortest first.
  template <class Visit>
  void prefixes(std::string_view text, std::size_t at, Visit visit) const {
    std::uint64_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      const auto next = next_.find(node << 8 | static_cast<unsigned char>(text[i]));
      if (next == next_.end()) return;
      node = next->second;
      if (ids_[node] >= 0) visit(i + 1 - at, ids_[node]);
    }
  }

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> next_;
  std::vector<std::int32_t> ids_ = {-1};
};

// The text as the model sees it. `user` holds the user-defined pieces, which are left as they are.
std::string normalize_sentencepiece(const SentencePieceModel& model, const PieceTrie& user,
                                    std::string_view text);

}  // namespace tutti::data
