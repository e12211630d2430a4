#include "parallel/compression.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace tutti::parallel {
namespace {

constexpr std::int64_t block = 256;

std::int64_t blocks_of(std::int64_t count) { return (count + block - 1) / block; }

// Of |x| below 2^22.
float rounded(float x) {
  constexpr float shift = 12582912.0F;  // 1.5 * 2^23: no bit is left below 1
  return (x + shift) - shift;
}

// The largest magnitude; not finite if one is not. Magnitudes are in order as whole numbers too,
// whose largest is found many at a time.
float largest(const float* x, std::int64_t count) {
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  return std::bit_cast<float>(most);
}

// How the numbers of a block are written behind the scales: pack(x / s), unpack() without s.
template <int Largest>
struct Whole {
  static float scale(const float* /*x*/, std::int64_t /*count*/, float most) {
    return most / Largest;
  }
  static float whole(float x) {
    return std::clamp(rounded(x), static_cast<float>(-Largest), static_cast<float>(Largest));
  }
};

struct Int8 : Whole<127> {
  static std::int64_t bytes(std::int64_t count) { return (count + 1) / 2 * 2; }
  static void pack(const float* x, std::int64_t count, std::uint8_t* out) {
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(whole(x[i])));
  }
  static void unpack(const std::uint8_t* in, std::int64_t count, float* x) {
    for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<std::int8_t>(in[i]);
  }
};

// Two numbers in a byte, each 8 more than it is.
struct Int4 : Whole<7> {
  static std::int64_t bytes(std::int64_t count) { return (count + 1) / 2; }
  static void pack(const float* x, std::int64_t count, std::uint8_t* out) {
    const auto nibble = [&](std::int64_t i) {
      return i < count ? static_cast<unsigned>(whole(x[i]) + 8) : 8U;
    };
    for (std::int64_t i = 0; i < count; i += 2)
      out[i / 2] = static_cast<std::uint8_t>(nibble(i) << 4 | nibble(i + 1));
  }
  static void unpack(const std::uint8_t* in, std::int64_t count, float* x) {
    for (std::int64_t i = 0; i < count; ++i)
      x[i] = static_cast<float>(in[i / 2] >> (i % 2 ? 0 : 4) & 15) - 8;
  }
};

struct Fp16 {
  static std::int64_t bytes(std::int64_t count) { return 2 * count; }
  static float scale(const float* /*x*/, std::int64_t /*count*/, float most) {
    int exponent = 0;
    std::frexp(most, &exponent);
    return std::ldexp(1.0F, std::clamp(exponent, -126, 127));
  }
  static void pack(const float* x, std::int64_t count, std::uint8_t* out) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto bits = c10::Half(x[i]).x;
      std::memcpy(out + 2 * i, &bits, 2);
    }
  }
  static void unpack(const std::uint8_t* in, std::int64_t count, float* x) {
    for (std::int64_t i = 0; i < count; ++i) {
      c10::Half half;
      std::memcpy(&half.x, in + 2 * i, 2);
      x[i] = half;
    }
  }
};

struct Sign {
  static std::int64_t bytes(std::int64_t count) { return (count + 7) / 8; }
  static float scale(const float* x, std::int64_t count, float /*most*/) {
    std::array<float, 8> sums = {};
    for (std::int64_t i = 0; i < count; ++i)
      sums[static_cast<std::size_t>(i % 8)] += std::abs(x[i]);
    float sum = 0;
    for (const float one : sums) sum += one;
    return sum / static_cast<float>(count);
  }
  static void pack(const float* x, std::int64_t count, std::uint8_t* out) {
    for (std::int64_t i = 0; i < count; i += 8) {
      unsigned bits = 0;
      for (std::int64_t j = 0; j < std::min<std::int64_t>(8, count - i); ++j)
        bits |= (x[i + j] < 0 ? 1U : 0U) << j;
      out[i / 8] = static_cast<std::uint8_t>(bits);
    }
  }
  static void unpack(const std::uint8_t* in, std::int64_t count, float* x) {
    for (std::int64_t i = 0; i < count; ++i) x[i] = (in[i / 8] >> i % 8 & 1) != 0 ? -1.0F : 1.0F;
  }
};

// The scales, then block after block (a whole number of bytes each).
template <class Kind>
void compress_blocks(const float* x, std::int64_t count, std::uint8_t* bytes) {
  std::uint8_t* at = bytes + blocks_of(count) * static_cast<std::int64_t>(sizeof(float));
  std::memset(at, 0, static_cast<std::size_t>(Kind::bytes(count)));
  std::array<float, block> scaled;
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t size = std::min(block, count - first);
    float scale = std::numeric_limits<float>::quiet_NaN();
    if (const float most = largest(x + first, size); std::isfinite(most)) {
      scale = Kind::scale(x + first, size, most);
      const float divisor = scale > 0 ? scale : 1;
      for (std::int64_t i = 0; i < size; ++i)
        scaled[static_cast<std::size_t>(i)] = x[first + i] / divisor;
      Kind::pack(scaled.data(), size, at);
    }
    std::memcpy(bytes + first / block * static_cast<std::int64_t>(sizeof scale), &scale,
                sizeof scale);
    at += Kind::bytes(size);
  }
}

template <class Kind, class T>
void add_blocks(const std::uint8_t* bytes, T* x, std::int64_t count, T factor) {
  const std::uint8_t* at = bytes + blocks_of(count) * static_cast<std::int64_t>(sizeof(float));
  std::array<float, block> values;
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t size = std::min(block, count - first);
    float scale = 0;
    std::memcpy(&scale, bytes + first / block * static_cast<std::int64_t>(sizeof scale),
                sizeof scale);
    Kind::unpack(at, size, values.data());
    for (std::int64_t i = 0; i < size; ++i)
      x[first + i] += factor * static_cast<T>(values[static_cast<std::size_t>(i)] * scale);
    at += Kind::bytes(size);
  }
}

// visit(Kind()) of the kind that has blocks.
template <class Visit>
auto with_kind(Compression kind, const Visit& visit) {
  switch (kind) {
    case Compression::fp16:
      return visit(Fp16());
    case Compression::int8:
      return visit(Int8());
    case Compression::int4:
      return visit(Int4());
    default:
      return visit(Sign());
  }
}

}  // namespace

Compression compression_of(const std::string& name) {
  const char* const names[] = {"bf16", "fp16", "int8", "int4", "sign"};
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  TUTTI_ASSERT(found != std::end(names), name);
  return static_cast<Compression>(found - std::begin(names));
}

std::int64_t compressed_size(Compression kind, std::int64_t count) {
  if (kind == Compression::bf16) return 2 * count;
  return with_kind(kind, [&](auto one) {
    return blocks_of(count) * static_cast<std::int64_t>(sizeof(float)) + one.bytes(count);
  });
}

void compress(Compression kind, const torch::Tensor& values, const torch::Tensor& bytes) {
  TUTTI_ASSERT(bytes.numel() == compressed_size(kind, values.numel()), bytes.numel());
  auto* const out = bytes.data_ptr<std::uint8_t>();
  if (kind == Compression::bf16) {
    const torch::Tensor half = values.to(torch::kBFloat16);
    std::memcpy(out, half.const_data_ptr(), half.nbytes());
    return;
  }
  const torch::Tensor exact = values.to(torch::kFloat);
  with_kind(kind, [&](auto one) {
    compress_blocks<decltype(one)>(exact.const_data_ptr<float>(), exact.numel(), out);
  });
}

void add_expanded(Compression kind, const torch::Tensor& bytes, const torch::Tensor& values,
                  double factor) {
  const auto* const in = bytes.const_data_ptr<std::uint8_t>();
  if (kind == Compression::bf16) {
    torch::Tensor half = torch::empty(values.sizes(), torch::kBFloat16);  // aligned
    std::memcpy(half.data_ptr(), in, half.nbytes());
    torch::Tensor(values).add_(half, factor);
    return;
  }
  with_kind(kind, [&](auto one) {
    if (values.scalar_type() == torch::kDouble)
      add_blocks<decltype(one)>(in, values.data_ptr<double>(), values.numel(), factor);
    else
      add_blocks<decltype(one)>(in, values.data_ptr<float>(), values.numel(),
                                static_cast<float>(factor));
  });
}

torch::Tensor compressed(Compression kind, const torch::Tensor& values) {
  const torch::Tensor bytes = torch::empty({compressed_size(kind, values.numel())}, torch::kByte);
  compress(kind, values.contiguous().view({-1}), bytes);
  return bytes;
}

torch::Tensor expanded(Compression kind, const torch::Tensor& bytes, const torch::Tensor& like) {
  const bool wide = like.scalar_type() == torch::kDouble;
  const torch::Tensor values = torch::zeros(like.sizes(), wide ? torch::kDouble : torch::kFloat);
  add_expanded(kind, bytes.contiguous(), values);
  return values.to(like);
}

}  // namespace tutti::parallel
