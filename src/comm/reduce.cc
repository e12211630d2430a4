#include "comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "comm/copy.h"

namespace tutti::comm {
namespace {

// One block of partial results a stack entry stays in the cache.
constexpr std::size_t block_bytes = 8192;

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

float widen(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

void narrow(float x, Bf16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  out.bits = static_cast<std::uint16_t>(x != x ? 0x7fc0 : rounded >> 16);
}

// Through a multiplication, so that subnormals need no case of their own.
float widen(F16 x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu, sign = std::uint32_t{x.bits & 0x8000u} << 16;
  float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  if (magnitude >= 0x7c00) value = std::bit_cast<float>((magnitude << 13) | 0x7f800000u);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

void narrow(float x, F16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    half = 0x7c00;
  } else if (magnitude < 0x38800000u) {  // subnormal: the adder rounds to a multiple of 2^-24
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  out.bits = static_cast<std::uint16_t>(half | sign);
}

template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<Bf16> {
  using type = float;
};
template <>
struct Wide<F16> {
  using type = float;
};

// Whole numbers wrap around.
template <class A>
A product(A a, A b) {
  using Factor = std::conditional_t<std::is_integral_v<A>, std::uint64_t, A>;
  return static_cast<A>(static_cast<Factor>(a) * static_cast<Factor>(b));
}

template <class A>
A combined(A a, A b, Reduce reduce) {
  if (reduce == Reduce::sum) return static_cast<A>(a + b);
  if (reduce == Reduce::product) return product(a, b);
  if (a != a) return a;
  if (b != b) return b;
  return reduce == Reduce::max ? std::max(a, b) : std::min(a, b);
}

template <class A>
void combine(A* out, const A* a, const A* b, std::size_t count, Reduce reduce) {
  switch (reduce) {
    case Reduce::sum:
    case Reduce::average:  // divided at the end
      for (std::size_t i = 0; i < count; ++i) out[i] = combined(a[i], b[i], Reduce::sum);
      return;
    case Reduce::max:
      for (std::size_t i = 0; i < count; ++i) out[i] = combined(a[i], b[i], Reduce::max);
      return;
    case Reduce::min:
      for (std::size_t i = 0; i < count; ++i) out[i] = combined(a[i], b[i], Reduce::min);
      return;
    case Reduce::product:
      for (std::size_t i = 0; i < count; ++i) out[i] = combined(a[i], b[i], Reduce::product);
      return;
  }
}

// The stack of partial results of one block. An entry points at a source where no conversion is
// needed, else at its own scratch.
template <class T>
class Block {
  using A = typename Wide<T>::type;
  static constexpr bool converts = !std::is_same_v<T, A>;

 public:
  static constexpr std::size_t capacity = block_bytes / sizeof(A);

  void push(const std::byte* source, std::size_t count) {
    const auto* values = reinterpret_cast<const T*>(source);
    if constexpr (converts) {
      for (std::size_t i = 0; i < count; ++i) scratch_[depth_][i] = widen(values[i]);
      entry_[depth_] = scratch_[depth_];
    } else {
      entry_[depth_] = values;
    }
    ++depth_;
  }

  void add(std::size_t count, Reduce reduce) {
    --depth_;
    combine(scratch_[depth_ - 1], entry_[depth_ - 1], entry_[depth_], count, reduce);
    entry_[depth_ - 1] = scratch_[depth_ - 1];
  }

  void divide(std::size_t count, std::size_t divisor) {
    A* const result = scratch_[depth_ - 1];
    for (std::size_t i = 0; i < count; ++i)
      result[i] = static_cast<A>(entry_[depth_ - 1][i] / static_cast<A>(divisor));
    entry_[depth_ - 1] = result;
  }

  void pop_to(std::span<std::byte* const> outputs, std::size_t offset, std::size_t count) {
    const A* result = entry_[--depth_];
    if constexpr (converts) {
      auto* narrowed = reinterpret_cast<T*>(scratch_[1]);
      for (std::size_t i = 0; i < count; ++i) narrow(result[i], narrowed[i]);
      for (std::byte* out : outputs) copy_bytes(out + offset, narrowed, count * sizeof(T));
    } else {
      for (std::byte* out : outputs) copy_bytes(out + offset, result, count * sizeof(T));
    }
  }

 private:
  std::size_t depth_ = 0;
  const A* entry_[max_reduction_depth];
  alignas(64) A scratch_[max_reduction_depth][capacity];
};

template <class T>
void run(std::span<const int> steps, std::span<const std::byte* const> sources,
         std::span<std::byte* const> outputs, std::size_t count, Reduce reduce) {
  Block<T> block;
  const auto pushes = steps.size() - static_cast<std::size_t>(std::ranges::count(
                                         steps, static_cast<int>(ReductionPlan::add)));
  for (std::size_t begin = 0; begin < count; begin += block.capacity) {
    const std::size_t size = std::min(block.capacity, count - begin);
    for (const int step : steps) {
      if (step == ReductionPlan::add)
        block.add(size, reduce);
      else
        block.push(sources[static_cast<std::size_t>(step)] + begin * sizeof(T), size);
    }
    if (reduce == Reduce::average) block.divide(size, pushes);
    block.pop_to(outputs, begin * sizeof(T), size);
  }
}

}  // namespace

const char* name_of(Reduce reduce) {
  constexpr const char* names[] = {"sum", "max", "min", "product", "average"};
  return names[static_cast<std::size_t>(reduce)];
}

void check_reduction(DType type, Reduce reduce) {
  const bool floats =
      type == DType::f64 || type == DType::f32 || type == DType::f16 || type == DType::bf16;
  if (reduce == Reduce::average && !floats)
    throw ConfigError(std::vector<Violation>{{"reduction", "", str("average of ", name_of(type)),
                                              "only floats are averaged", "sum and divide"}});
}

void reduce_elements(std::span<const int> steps, std::span<const std::byte* const> sources,
                     std::span<std::byte* const> outputs, std::size_t count, DType type,
                     Reduce reduce) {
  switch (type) {
    case DType::f64:
      return run<double>(steps, sources, outputs, count, reduce);
    case DType::f32:
      return run<float>(steps, sources, outputs, count, reduce);
    case DType::f16:
      return run<F16>(steps, sources, outputs, count, reduce);
    case DType::bf16:
      return run<Bf16>(steps, sources, outputs, count, reduce);
    case DType::i64:
      return run<std::int64_t>(steps, sources, outputs, count, reduce);
    case DType::i32:
      return run<std::int32_t>(steps, sources, outputs, count, reduce);
    case DType::i16:
      return run<std::int16_t>(steps, sources, outputs, count, reduce);
    case DType::i8:
      return run<std::int8_t>(steps, sources, outputs, count, reduce);
    case DType::u8:
      return run<std::uint8_t>(steps, sources, outputs, count, reduce);
    case DType::boolean:  // a sum of truths is "or", a product "and"
      return run<std::uint8_t>(steps, sources, outputs, count,
                               reduce == Reduce::sum ? Reduce::max : reduce);
  }
  TUTTI_ASSERT(false, "dtype");
}

}  // namespace tutti::comm
