#include "data/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

namespace tutti::data {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}
std::uint64_t scramble(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return key ^ key >> 29;
}

}  // namespace

void MergeTable::reserve(std::size_t merges) {
  slots_.assign(std::bit_ceil(merges * 2 + 16), {});
  mask_ = slots_.size() - 1;
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = pair_key(left, right);
  std::uint64_t at = scramble(key) & mask_;
  while (slots_[at].key != UINT64_MAX && slots_[at].key != key) at = (at + 1) & mask_;
  slots_[at] = {key, merge};
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
  if (slots_.empty()) return {none, -1};
  const std::uint64_t key = pair_key(left, right);
  std::uint64_t at = scramble(key) & mask_;
  while (slots_[at].key != UINT64_MAX) {
    if (slots_[at].key == key) return slots_[at].merge;
    at = (at + 1) & mask_;
  }
  return {none, -1};
}

void merge_word_slowly(const MergeTable& merges, std::vector<std::int32_t>& ids) {
  for (;;) {
    MergeTable::Merge best{MergeTable::none, -1};
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges.find(ids[i], ids[i + 1]);
      if (merge.rank < best.rank) best = merge, where = i;
    }
    if (best.rank == MergeTable::none) return;
    ids[where] = best.id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

namespace {

// Keeps each pair's merge, so that a round looks up only the two new pairs.
void merge_short(const MergeTable& merges, std::vector<std::int32_t>& ids) {
  thread_local std::vector<MergeTable::Merge> pairs;
  pairs.clear();
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) pairs.push_back(merges.find(ids[i], ids[i + 1]));
  while (!pairs.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs.size(); ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == MergeTable::none) return;
    ids[best] = pairs[best].id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(best));
    if (best < pairs.size()) pairs[best] = merges.find(ids[best], ids[best + 1]);
    if (best > 0) pairs[best - 1] = merges.find(ids[best - 1], ids[best]);
  }
}

struct Candidate {
  std::uint32_t rank;
  std::int32_t at, id;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

// A linked list of symbols and a heap of pairs; stale heap entries are recognised when popped.
void merge_long(const MergeTable& merges, std::vector<std::int32_t>& ids) {
  const auto size = static_cast<std::int32_t>(ids.size());
  std::vector<std::int32_t> next(ids.size()), before(ids.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto offer = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right >= size) return;
    const auto merge =
        merges.find(ids[static_cast<std::size_t>(left)], ids[static_cast<std::size_t>(right)]);
    if (merge.rank != MergeTable::none) heap.push({merge.rank, left, merge.id});
  };
  for (std::int32_t i = 0; i < size; ++i) {
    next[static_cast<std::size_t>(i)] = i + 1;
    before[static_cast<std::size_t>(i)] = i - 1;
    offer(i, i + 1);
  }
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const auto left = static_cast<std::size_t>(top.at);
    if (ids[left] < 0 || next[left] >= size) continue;
    const auto right = static_cast<std::size_t>(next[left]);
    const auto merge = merges.find(ids[left], ids[right]);
    if (merge.rank != top.rank || merge.id != top.id) continue;
    ids[left] = top.id;
    ids[right] = -1;
    next[left] = next[right];
    if (next[right] < size) before[static_cast<std::size_t>(next[right])] = top.at;
    offer(before[left], top.at);
    offer(top.at, next[left]);
  }
  std::erase(ids, -1);
}

}  // namespace

void merge_word(const MergeTable& merges, std::vector<std::int32_t>& ids) {
  if (ids.size() < 48)
    merge_short(merges, ids);
  else
    merge_long(merges, ids);
}

}  // namespace tutti::data
