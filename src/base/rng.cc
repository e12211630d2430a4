#include "base/rng.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/hash.h"

namespace tutti {
namespace {

using Words = std::array<std::uint32_t, 4>;

// 53 bits of two words, in [0, 1).
double unit(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

// Salmon et al., section 4.3: multipliers and Weyl increments of Philox4x32.
Words philox4x32(Words counter, std::uint64_t key) {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ low, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ high, static_cast<std::uint32_t>(a)};
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return counter;
}

RandomStream::RandomStream(std::uint64_t seed, std::string_view name, std::uint64_t substream)
    : key_(hash64(name, seed)), substream_(substream) {}

Words RandomStream::words(std::uint64_t position) const {
  return philox4x32(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
       static_cast<std::uint32_t>(substream_), static_cast<std::uint32_t>(substream_ >> 32)},
      key_);
}

double RandomStream::uniform(std::uint64_t position) const {
  const Words w = words(position);
  return unit(w[0], w[1]);
}

std::array<double, 2> RandomStream::normal_pair(std::uint64_t pair) const {
  const Words w = words(pair);
  const double radius = std::sqrt(-2 * std::log(1 - unit(w[0], w[1])));
  const double angle = 2 * std::numbers::pi * unit(w[2], w[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double RandomStream::normal(std::uint64_t position) const {
  return normal_pair(position / 2)[position % 2];
}

std::uint64_t RandomStream::below(std::uint64_t bound, std::uint64_t position) const {
  TUTTI_ASSERT(bound >= 1);
  const Words w = words(position);
  const std::uint64_t bits = std::uint64_t{w[0]} << 32 | w[1];
  // Multiply-shift: the bias is below bound / 2^64.
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{bits} * bound) >> 64);
}

Permutation::Permutation(std::uint64_t size, const RandomStream& stream) : size_(size) {
  TUTTI_ASSERT(size >= 1);
  half_bits_ = 1;
  while (half_bits_ < 32 && (std::uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  const auto a = stream.words(0), b = stream.words(1);
  for (std::size_t i = 0; i < 4; ++i) round_keys_[i] = a[i], round_keys_[i + 4] = b[i];
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  TUTTI_ASSERT(index < size_, "index ", index, " of ", size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::size_t round = 0; round < 4; ++round) {
      // One multiply-xorshift mix a round (constants of MurmurHash3's finaliser).
      std::uint64_t mixed = right ^ round_keys_[2 * round];
      mixed = (mixed ^ (mixed >> 33)) * 0xff51afd7ed558ccdULL + round_keys_[2 * round + 1];
      mixed = (mixed ^ (mixed >> 33)) * 0xc4ceb9fe1a85ec53ULL;
      const std::uint64_t next = left ^ ((mixed ^ (mixed >> 33)) & mask);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace tutti
