// The matrix product for processors with AVX-512. Transformer shapes (a few hundred rows, K of a
// few hundred) are small enough that a library's copying of both operands shows; here only panels
// of b are copied, and of a only if it is transposed. Each element of c is summed in the order of k
// in blocks of k_block, whatever the split of rows: the bits do not depend on the number of
// threads.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nn/gemm.h"

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed within this file only

namespace tutti::nn::v4 {
namespace {

constexpr std::int64_t lanes = 16;
constexpr std::int64_t k_block = 192;    // a panel of b, 192 x 48, stays in the first-level cache
constexpr std::int64_t row_block = 512;  // its partner of a in the second
constexpr std::int64_t tile_rows = 8;

float* scratch(std::size_t which, std::int64_t size) {
  thread_local std::vector<float> buffers[2];
  auto& buffer = buffers[which];
  const auto wanted = static_cast<std::size_t>(size) + lanes;
  if (buffer.size() < wanted) buffer.resize(wanted);
  const auto at = reinterpret_cast<std::uintptr_t>(buffer.data());
  return buffer.data() + (64 - at % 64) % 64 / sizeof(float);
}

}  // namespace
}  // namespace tutti::nn::v4

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4"), min_vector_width(512))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4", "prefer-vector-width=512")
#endif
#define TUTTI_INLINE __attribute__((always_inline)) inline
#define TUTTI_UNROLL _Pragma("GCC unroll 16")

namespace tutti::nn::v4 {
namespace {

typedef float V __attribute__((vector_size(64)));

TUTTI_INLINE V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
TUTTI_INLINE void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }
TUTTI_INLINE V all(float x) { return V{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

// Element (i, p) of a lies at a[i * row_step + p * k_step].
struct Left {
  const float* data;
  std::int64_t row_step, k_step;
};

// c [rows, 16 columns] (+)= a b, held in registers.
template <int rows, int columns>
TUTTI_INLINE void tile(std::int64_t k, Left a, const float* b, std::int64_t b_leading, float* c,
                       std::int64_t c_leading, bool add) {
  V sums[rows][columns];
  TUTTI_UNROLL for (int i = 0; i < rows; ++i) TUTTI_UNROLL for (int j = 0; j < columns; ++j)
      sums[i][j] = add ? load(c + i * c_leading + lanes * j) : V{};
  for (std::int64_t p = 0; p < k; ++p) {
    V right[columns];
    TUTTI_UNROLL for (int j = 0; j < columns; ++j) right[j] = load(b + p * b_leading + lanes * j);
    TUTTI_UNROLL for (int i = 0; i < rows; ++i) {
      const V left = all(a.data[i * a.row_step + p * a.k_step]);
      TUTTI_UNROLL for (int j = 0; j < columns; ++j) sums[i][j] += left * right[j];
    }
  }
  TUTTI_UNROLL for (int i = 0; i < rows; ++i) TUTTI_UNROLL for (int j = 0; j < columns; ++j)
      store(c + i * c_leading + lanes * j, sums[i][j]);
}

// All rows of one panel of columns. tile_step: from one tile of a to the next.
template <int columns>
void panel(std::int64_t m, std::int64_t k, Left a, std::int64_t tile_step, const float* b,
           std::int64_t b_leading, float* c, std::int64_t c_leading, bool add) {
  std::int64_t i = 0;
  for (; i + tile_rows <= m; i += tile_rows, a.data += tile_step)
    tile<tile_rows, columns>(k, a, b, b_leading, c + i * c_leading, c_leading, add);
  if (i + 4 <= m) {
    tile<4, columns>(k, a, b, b_leading, c + i * c_leading, c_leading, add);
    i += 4, a.data += 4 * a.row_step;
  }
  for (; i < m; ++i, a.data += a.row_step)
    tile<1, columns>(k, a, b, b_leading, c + i * c_leading, c_leading, add);
}

TUTTI_INLINE void interleave(V& a, V& b, int width) {
  if (width == 1) {
    const V low =
        __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    b = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    a = low;
  } else if (width == 2) {
    const V low =
        __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    b = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    a = low;
  } else if (width == 4) {
    const V low =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    b = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    a = low;
  } else {
    const V low =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    b = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    a = low;
  }
}

// out [16, leading] = transpose of 16 x 16 floats.
void transpose_square(const float* in, std::int64_t in_leading, float* out,
                      std::int64_t out_leading) {
  V rows[lanes];
  TUTTI_UNROLL for (int i = 0; i < lanes; ++i) rows[i] = load(in + i * in_leading);
  TUTTI_UNROLL for (int i = 0; i < lanes; i += 2) interleave(rows[i], rows[i + 1], 1);
  TUTTI_UNROLL for (int i = 0; i < lanes; ++i) if ((i & 2) == 0)
      interleave(rows[i], rows[i + 2], 2);
  TUTTI_UNROLL for (int i = 0; i < lanes; ++i) if ((i & 4) == 0)
      interleave(rows[i], rows[i + 4], 4);
  TUTTI_UNROLL for (int i = 0; i < 8; ++i) interleave(rows[i], rows[i + 8], 8);
  TUTTI_UNROLL for (int i = 0; i < lanes; ++i) store(out + i * out_leading, rows[i]);
}

void transpose(const float* in, std::int64_t in_leading, float* out, std::int64_t out_leading,
               std::int64_t rows, std::int64_t columns) {
  const std::int64_t whole_rows = rows / lanes * lanes, whole = columns / lanes * lanes;
  for (std::int64_t r = 0; r < whole_rows; r += lanes)
    for (std::int64_t c = 0; c < whole; c += lanes)
      transpose_square(in + r * in_leading + c, in_leading, out + c * out_leading + r, out_leading);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = r < whole_rows ? whole : 0; c < columns; ++c)
      out[c * out_leading + r] = in[r * in_leading + c];
}

// b's rows [k0, k0 + k), columns [j, j + width) side by side.
void copy_panel(Matrix b, std::int64_t k0, std::int64_t k, std::int64_t j, std::int64_t width,
                float* out) {
  if (b.transposed) {
    transpose(b.data + j * b.leading + k0, b.leading, out, width, width, k);
    return;
  }
  const float* from = b.data + k0 * b.leading + j;
  for (std::int64_t p = 0; p < k; ++p)
    for (std::int64_t q = 0; q < width; q += lanes)
      store(out + p * width + q, load(from + p * b.leading + q));
}

// Stored k x m; tiles of eight columns, each k x 8.
void copy_left(const float* a, std::int64_t leading, std::int64_t m, std::int64_t k, float* out) {
  const std::int64_t whole = m / tile_rows * tile_rows;
  for (std::int64_t p = 0; p < k; ++p) {
    const float* from = a + p * leading;
    for (std::int64_t i = 0; i < whole; i += tile_rows)
      __builtin_memcpy(out + i * k + p * tile_rows, from + i, tile_rows * sizeof(float));
    for (std::int64_t i = whole; i < m; ++i) out[whole * k + p * tile_rows + (i - whole)] = from[i];
  }
}

// The next panel's width in vectors: threes, with the rest as even as can be.
std::int64_t panel_vectors(std::int64_t left) {
  return left == 1 ? 1 : left == 2 || left == 4 ? 2 : 3;
}

}  // namespace

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta, float* c,
          std::int64_t c_leading) {
  const bool copy_b = b.transposed || m > 64;
  float* right = copy_b ? scratch(0, k_block * 3 * lanes) : nullptr;
  for (std::int64_t k0 = 0; k0 < k; k0 += k_block) {
    const std::int64_t depth = std::min(k_block, k - k0);
    const bool add = beta != 0 || k0 > 0;
    for (std::int64_t i0 = 0; i0 < m; i0 += row_block) {
      const std::int64_t rows = std::min(row_block, m - i0);
      Left left{a.data + i0 * a.leading + k0, a.leading, 1};
      std::int64_t tile_step = tile_rows * a.leading;
      if (a.transposed) {
        float* copied = scratch(1, (rows + tile_rows) * depth);
        copy_left(a.data + k0 * a.leading + i0, a.leading, rows, depth, copied);
        left = {copied, 1, tile_rows};
        tile_step = tile_rows * depth;
      }
      for (std::int64_t j = 0; j < n;) {
        const std::int64_t vectors = panel_vectors((n - j) / lanes), width = vectors * lanes;
        const float* panel_b = b.data + k0 * b.leading + j;
        if (copy_b) copy_panel(b, k0, depth, j, width, right);
        const auto run = vectors == 3 ? panel<3> : vectors == 2 ? panel<2> : panel<1>;
        run(rows, depth, left, tile_step, copy_b ? right : panel_b, copy_b ? width : b.leading,
            c + i0 * c_leading + j, c_leading, add);
        j += width;
      }
    }
  }
}

void transposed_copy(const float* in, std::int64_t in_leading, float* out, std::int64_t out_leading,
                     std::int64_t rows, std::int64_t columns) {
  transpose(in, in_leading, out, out_leading, rows, columns);
}

}  // namespace tutti::nn::v4

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif  // __x86_64__
