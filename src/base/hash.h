// XXH3, 64 bits: checksums of files and tensors, keys of random streams. Not cryptographic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0);

// 16 lower-case hexadecimal digits.
std::string hex64(std::uint64_t value);

}  // namespace tutti
