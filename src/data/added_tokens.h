// Whole-piece tokens ("<|endoftext|>") cut out of text before the model sees it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

class AddedTokens {
 public:
  void add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  struct Stretch {
    std::string_view text;
    std::int32_t id;  // -1: ordinary text
  };
  // Leftmost and longest matches; ordinary stretches are never empty.
  void cut(std::string_view text, std::vector<Stretch>& out) const;

 private:
  const AddedToken* match(std::string_view text, std::size_t at) const;
  std::vector<AddedToken> tokens_;
  std::array<std::vector<std::size_t>, 256> by_first_;  // longest first
};

}  // namespace tutti::data
