#include "comm/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::comm {
namespace {

#if defined(__x86_64__)
__attribute__((target("avx"))) void copy_by_lines(std::byte* to, const std::byte* from,
                                                  std::size_t lines) {
  for (; lines > 0; --lines, to += 64, from += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 32), high);
  }
}

// Between these sizes glibc copies with `rep movsb`, which some processors (Zen 3) do at a tenth of
// the speed where the two places do not lie alike within a page.
constexpr std::size_t least = 2048, most = 1 << 20;

bool copies_by_lines(std::size_t bytes) {
  static const bool able = __builtin_cpu_supports("avx") != 0;
  return able && least <= bytes && bytes < most;
}
#endif

}  // namespace

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
#if defined(__x86_64__)
  if (copies_by_lines(bytes)) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % 64;
    const std::size_t lines = (bytes - head) / 64, done = head + lines * 64;
    std::memcpy(out, in, head);
    copy_by_lines(out + head, in + head, lines);
    std::memcpy(out + done, in + done, bytes - done);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace tutti::comm
