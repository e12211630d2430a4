// Randomness by name (promise 4): a draw is a pure function of (seed, name, position), so every
// layout, worker count and order of evaluation sees the same numbers.
//
// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace tutti {

// The bare generator: ten rounds over a 128-bit counter and a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::uint64_t key);

// Names one stream. `substream` is usually a step or an epoch.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name, std::uint64_t substream = 0);

  // Four independent uniform 32-bit words for `position`.
  std::array<std::uint32_t, 4> words(std::uint64_t position) const;
  // Uniform in [0, 1), with 53 bits.
  double uniform(std::uint64_t position) const;
  // Normal(0, 1) by Box-Muller; positions 2k and 2k+1 share a Philox block.
  double normal(std::uint64_t position) const;
  // normal(2 pair) and normal(2 pair + 1), for filling arrays at half the cost.
  std::array<double, 2> normal_pair(std::uint64_t pair) const;
  // The key of words(): philox4x32({position, substream}, key), each 64 bits, low words first.
  std::uint64_t key() const { return key_; }
  // Uniform in [0, bound); bound >= 1.
  std::uint64_t below(std::uint64_t bound, std::uint64_t position) const;

 private:
  std::uint64_t key_;
  std::uint64_t substream_;
};

// A pseudo-random bijection of [0, size): element `index` of a shuffle that is never stored.
// Four Feistel rounds over the next even power of two, walking cycles back into the range.
class Permutation {
 public:
  Permutation(std::uint64_t size, const RandomStream& stream);
  std::uint64_t operator()(std::uint64_t index) const;  // index < size
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_;
  unsigned half_bits_;
  std::array<std::uint32_t, 8> round_keys_;
};

}  // namespace tutti
