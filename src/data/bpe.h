// Byte-pair encoding of one word: merges the pair of lowest rank, leftmost first, until none is
// left.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tutti::data {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

// Open addressing from a pair of ids to (rank, id of the merged token).
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t none = UINT32_MAX;

  void reserve(std::size_t merges);
  void add(std::int32_t left, std::int32_t right, Merge merge);  // a later one wins
  Merge find(std::int32_t left, std::int32_t right) const;       // rank == none: no merge

 private:
  struct Slot {
    std::uint64_t key = UINT64_MAX;
    Merge merge{none, -1};
  };
  std::vector<Slot> slots_;
  std::uint64_t mask_ = 0;
};

// In place; the length after merging. O(n log n) for long words, a plain scan for short ones.
void merge_word(const MergeTable& merges, std::vector<std::int32_t>& ids);
// The obvious twin.
void merge_word_slowly(const MergeTable& merges, std::vector<std::int32_t>& ids);

}  // namespace tutti::data
