// Conformance of every reduction of every element type, and of the operations that have a root.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/conformance.h"
#include "comm/reduce.h"

namespace tutti::comm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType types[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64,
                           DType::i32, DType::i16, DType::i8,  DType::u8,   DType::boolean};
constexpr Reduce reductions[] = {Reduce::sum, Reduce::max, Reduce::min, Reduce::product,
                                 Reduce::average};

std::size_t n(int value) { return static_cast<std::size_t>(value); }

bool is_float(DType type) {
  return type == DType::f64 || type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

// Of a whole number from 0 to 2047.
std::uint16_t half_bits(double x) {
  if (x == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent) * 2 - 1;
  return static_cast<std::uint16_t>(((exponent + 14) << 10) | static_cast<int>(fraction * 1024));
}

std::uint64_t bits_of(double x, DType type) {
  if (type == DType::f64) return std::bit_cast<std::uint64_t>(x);
  if (type == DType::f16) return half_bits(x);
  const auto single = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  if (type == DType::f32) return single;
  if (type == DType::bf16) return single >> 16;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
}

// Whole numbers that every type reduces exactly or, as bytes do, wraps around.
double value_of(const Communicator& c, int rank, std::size_t index, DType type, Reduce reduce) {
  const std::size_t x = (n(rank) * 7 + index * 3) % 11;
  if (type == DType::boolean) return static_cast<double>(x % 3 != 0);
  if (reduce == Reduce::product) return static_cast<double>(1 + x % 2);
  return static_cast<double>(reduce == Reduce::average ? x * n(c.size()) : x);
}

double twin(const Communicator& c, std::size_t index, DType type, Reduce reduce) {
  double result = value_of(c, 0, index, type, reduce);
  for (int r = 1; r < c.size(); ++r) {
    const double next = value_of(c, r, index, type, reduce);
    if (reduce == Reduce::max) result = std::max(result, next);
    if (reduce == Reduce::min) result = std::min(result, next);
    if (reduce == Reduce::product) result *= next;
    if (reduce == Reduce::sum || reduce == Reduce::average) result += next;
  }
  if (type == DType::boolean) return static_cast<double>(result != 0);
  return reduce == Reduce::average ? result / c.size() : result;
}

template <class Value>
Bytes encoded(std::size_t count, DType type, Value value) {
  const std::size_t element = size_of(type);
  Bytes bytes(count * element);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = bits_of(value(i), type);
    std::memcpy(bytes.data() + i * element, &bits, element);
  }
  return bytes;
}

// Memory with a guard behind it, from the communicator's where `shared` and possible.
class Memory {
 public:
  Memory(Communicator& c, std::size_t bytes, bool shared) : own_(bytes + 1), bytes_(bytes) {
    void* memory = shared ? c.allocate_shared(bytes + 1) : nullptr;
    data_ = memory ? static_cast<std::byte*>(memory) : own_.data();
    data_[bytes] = guard;
  }
  Memory(Communicator& c, const Bytes& content, bool shared) : Memory(c, content.size(), shared) {
    std::ranges::copy(content, data_);
  }
  std::byte* data() { return data_; }
  void expect(const Bytes& expected, const std::string& what) const {
    if (!std::ranges::equal(expected, std::span(data_, bytes_)))
      throw WorldError(str("conformance: ", what, ": other bits in ", bytes_, " bytes"));
    if (data_[bytes_] != guard) throw WorldError(str("conformance: ", what, " wrote past its end"));
  }

 private:
  static constexpr std::byte guard{77};
  Bytes own_;
  std::size_t bytes_;
  std::byte* data_;
};

void check_refused(Communicator& c, DType type) {
  Bytes data(size_of(type) * n(c.size()));
  const std::vector<std::size_t> counts(n(c.size()), 1);
  const auto refused = [&](const char* what, const auto& call) {
    try {
      call();
    } catch (const ConfigError&) {
      return;
    }
    throw WorldError(str("conformance: ", what, " averages ", name_of(type)));
  };
  refused("all_reduce", [&] { c.all_reduce(data.data(), 1, type, Reduce::average); });
  refused("reduce", [&] { c.reduce(data.data(), data.data(), 1, type, Reduce::average, 0); });
  refused("reduce_scatter",
          [&] { c.reduce_scatter_v(data.data(), data.data(), counts, type, Reduce::average); });
}

void check_reduction_of(Communicator& c, std::size_t count, DType type, Reduce reduce,
                        bool shared) {
  const std::string what = str(name_of(reduce), " of ", count, " ", name_of(type));
  const std::size_t all = count * n(c.size()), begin = count * n(c.rank());
  const auto mine = [&](std::size_t i) { return value_of(c, c.rank(), i, type, reduce); };
  const auto result = [&](std::size_t i) { return twin(c, i, type, reduce); };
  Memory data(c, encoded(count, type, mine), shared);
  c.all_reduce(data.data(), count, type, reduce);
  data.expect(encoded(count, type, result), "all_reduce, " + what);
  Memory whole(c, encoded(all, type, mine), shared), part(c, count * size_of(type), shared);
  c.reduce_scatter(whole.data(), part.data(), count, type, reduce);
  part.expect(encoded(count, type, [&](std::size_t i) { return result(begin + i); }),
              "reduce_scatter, " + what);
  for (int root = 0; root < c.size(); ++root) {
    const bool is_root = c.rank() == root, in_place = root % 2 == 1;
    Memory in(c, encoded(count, type, mine), shared), out(c, count * size_of(type), shared);
    std::byte* const to = in_place ? in.data() : out.data();
    c.reduce(in.data(), is_root ? to : nullptr, count, type, reduce, root);
    const auto after = [&](std::size_t i) { return is_root ? result(i) : mine(i); };
    if (is_root || in_place)
      (in_place ? in : out).expect(encoded(count, type, after), "reduce, " + what);
  }
}

// Rank r's part has `count` elements more or less by r, or none.
void check_parts_of_root(Communicator& c, std::size_t count, DType type, bool shared) {
  const auto value = [&](int rank, std::size_t i) {
    return value_of(c, rank, i, type, Reduce::sum);
  };
  std::vector<std::size_t> counts;
  for (int r = 0; r < c.size(); ++r) counts.push_back(r % 3 == 2 ? 0 : count + n(r) % 2);
  const std::size_t own = counts[n(c.rank())];
  for (int root = 0; root < c.size(); ++root) {
    Bytes all;
    for (int r = 0; r < c.size(); ++r) {
      const auto from = [&](std::size_t i) { return value(r, i); };
      const Bytes part = encoded(counts[n(r)], type, from);
      all.insert(all.end(), part.begin(), part.end());
    }
    const bool is_root = c.rank() == root;
    Memory in(c, encoded(own, type, [&](std::size_t i) { return value(c.rank(), i); }), shared);
    Memory gathered(c, is_root ? all.size() : 0, shared), part(c, own * size_of(type), shared);
    c.gather_v(in.data(), is_root ? gathered.data() : nullptr, counts, type, root);
    if (is_root) gathered.expect(all, "gather");
    c.scatter_v(is_root ? gathered.data() : nullptr, part.data(), counts, type, root);
    part.expect(encoded(own, type, [&](std::size_t i) { return value(c.rank(), i); }), "scatter");
  }
}

}  // namespace

void check_types(Communicator& c) {
  for (const DType type : types)
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{509}, 4096 / size_of(type) + 1})
      for (const bool shared : {false, true}) {
        for (const Reduce reduce : reductions)
          if (reduce != Reduce::average || is_float(type))
            check_reduction_of(c, count, type, reduce, shared);
        check_parts_of_root(c, count, type, shared);
      }
  for (const DType type : types)
    if (!is_float(type)) check_refused(c, type);
  c.barrier();
}

}  // namespace tutti::comm
