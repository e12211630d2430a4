#include "comm/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

namespace tutti::comm {
namespace {

template <class T>
constexpr DType dtype_of = std::is_same_v<T, double>         ? DType::f64
                           : std::is_same_v<T, float>        ? DType::f32
                           : std::is_same_v<T, std::int64_t> ? DType::i64
                           : std::is_same_v<T, std::int32_t> ? DType::i32
                           : std::is_same_v<T, std::int16_t> ? DType::i16
                           : std::is_same_v<T, std::int8_t>  ? DType::i8
                                                             : DType::u8;

// Small whole numbers, so that every type and order sums them exactly.
template <class T>
T value_of(int rank, std::size_t index) {
  return static_cast<T>((static_cast<std::size_t>(rank) * 7 + index * 3) % 11);
}

template <class T>
T reduced(int size, std::size_t index, Reduce reduce) {
  T result = value_of<T>(0, index);
  for (int r = 1; r < size; ++r) {
    const T next = value_of<T>(r, index);
    result = reduce == Reduce::sum   ? static_cast<T>(result + next)
             : reduce == Reduce::max ? std::max(result, next)
                                     : std::min(result, next);
  }
  return result;
}

// Memory of `count` elements, from the communicator's shared memory where `shared` and possible.
template <class T>
class Buffer {
 public:
  Buffer(Communicator& c, std::size_t count, bool shared) : own_(count + 1), count_(count) {
    void* memory = shared ? c.allocate_shared((count + 1) * sizeof(T)) : nullptr;
    data_ = memory ? static_cast<T*>(memory) : own_.data();
    data_[count] = guard;
  }
  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  void fill(int rank) {
    for (std::size_t i = 0; i < count_; ++i) data_[i] = value_of<T>(rank, i);
  }
  void expect(std::size_t index, T value, const char* what) {
    if (data_[index] != value)
      throw WorldError(str("conformance: ", what, " of ", count_, " ", name_of(dtype_of<T>),
                           ": element ", index, " is ", +data_[index], ", not ", +value));
    if (data_[count_] != guard) throw WorldError(str("conformance: ", what, " wrote past its end"));
  }

 private:
  static constexpr T guard = static_cast<T>(77);
  std::vector<T> own_;
  std::size_t count_;
  T* data_;
};

template <class T>
void check_reductions(Communicator& c, std::size_t count, bool shared) {
  const auto size = static_cast<std::size_t>(c.size()), me = static_cast<std::size_t>(c.rank());
  for (const Reduce reduce : {Reduce::sum, Reduce::max, Reduce::min}) {
    Buffer<T> data(c, count, shared);
    data.fill(c.rank());
    c.all_reduce(data.data(), count, dtype_of<T>, reduce);
    for (std::size_t i = 0; i < count; ++i)
      data.expect(i, reduced<T>(c.size(), i, reduce), "all_reduce");
    Buffer<T> in(c, count * size, shared), out(c, count, shared);
    in.fill(c.rank());
    c.reduce_scatter(in.data(), out.data(), count, dtype_of<T>, reduce);
    for (std::size_t i = 0; i < count; ++i)
      out.expect(i, reduced<T>(c.size(), me * count + i, reduce), "reduce_scatter");
  }
}

template <class T>
void check_movements(Communicator& c, std::size_t count, bool shared) {
  const auto size = static_cast<std::size_t>(c.size()), me = static_cast<std::size_t>(c.rank());
  for (int root = 0; root < c.size(); root += 2) {
    Buffer<T> data(c, count, shared);
    data.fill(c.rank());
    c.broadcast(data.data(), count, dtype_of<T>, root);
    for (std::size_t i = 0; i < count; ++i) data.expect(i, value_of<T>(root, i), "broadcast");
  }
  Buffer<T> one(c, count, shared), all(c, count * size, shared), in(c, count * size, shared);
  one.fill(c.rank());
  c.all_gather(one.data(), all.data(), count, dtype_of<T>);
  for (std::size_t r = 0; r < size; ++r)
    for (std::size_t i = 0; i < count; ++i)
      all.expect(r * count + i, value_of<T>(static_cast<int>(r), i), "all_gather");
  in.fill(c.rank());
  c.all_to_all(in.data(), all.data(), count, dtype_of<T>);
  for (std::size_t r = 0; r < size; ++r)
    for (std::size_t i = 0; i < count; ++i)
      all.expect(r * count + i, value_of<T>(static_cast<int>(r), me * count + i), "all_to_all");
  c.barrier();
}

// Around the ring, in both roles, longer than the channel holds.
void check_messages(Communicator& c, std::size_t bytes, bool shared) {
  if (c.size() == 1) return;
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  Buffer<std::uint8_t> out(c, bytes, shared), in(c, bytes, shared);
  out.fill(c.rank());
  for (int turn = 0; turn < c.size(); ++turn) {
    if (turn == c.rank()) c.send(out.data(), bytes, next);
    if (turn == previous) c.recv(in.data(), bytes, previous);
  }
  for (std::size_t i = 0; i < bytes; ++i)
    in.expect(i, value_of<std::uint8_t>(previous, i), "send and recv");
}

template <class T>
void check_type(Communicator& c) {
  for (const std::size_t count : {0, 1, 13, 509, 4099})
    for (const bool shared : {false, true}) {
      check_reductions<T>(c, count, shared);
      check_movements<T>(c, count, shared);
    }
}

// Micro-batch `id`'s values: of f32 and f64 any, of 16-bit types small whole numbers.
template <class T>
void fill_leaf(std::vector<T>& values, int id, bool whole) {
  RandomStream random(7, str("leaf", id));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = random.normal(i) * std::exp2(static_cast<double>(i % 20));
    values[i] = static_cast<T>(whole ? std::fmod(std::trunc(x), 8) : x);
  }
}

// f32 -> the storage type of `type`, for whole numbers that fit.
std::uint16_t sixteen_bits(float x, DType type) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (type == DType::bf16) return static_cast<std::uint16_t>(bits >> 16);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  if ((bits & 0x7fffffff) == 0) return sign;
  return static_cast<std::uint16_t>(sign | ((((bits >> 23) & 0xff) - 112) << 10) |
                                    ((bits >> 13) & 0x3ff));
}

std::string as_bytes(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

template <class T>
std::string encoded(const std::vector<T>& values, DType type) {
  if (size_of(type) != 2) return as_bytes(values.data(), values.size() * sizeof(T));
  std::vector<std::uint16_t> narrow;
  for (const T value : values) narrow.push_back(sixteen_bits(static_cast<float>(value), type));
  return as_bytes(narrow.data(), narrow.size() * 2);
}

template <class T>
void add_to(std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

template <class T>
std::vector<T> recursive_sum(Range node, std::size_t count, bool whole) {
  std::vector<T> left(count);
  if (node.size() == 1) {
    fill_leaf(left, node.begin, whole);
    return left;
  }
  const int middle = node.begin + split_of(node.size());
  left = recursive_sum<T>({node.begin, middle}, count, whole);
  add_to(left, recursive_sum<T>({middle, node.end}, count, whole));
  return left;
}

template <class T>
std::string tree_sum_of(Communicator& c, int leaves, std::size_t count, DType type) {
  const auto plan = plan_reduction(even_ranges(leaves, c.size()));
  const Range mine = plan.ranges[static_cast<std::size_t>(c.rank())];
  const auto arrivals = arrivals_of(mine, leaves);
  std::vector<std::vector<T>> slots(static_cast<std::size_t>(slots_of(arrivals)),
                                    std::vector<T>(count));
  for (int id = mine.begin; id < mine.end; ++id) {
    const auto [slot, merges] = arrivals[static_cast<std::size_t>(id - mine.begin)];
    auto top = static_cast<std::size_t>(slot);
    fill_leaf(slots[top], id, size_of(type) == 2);
    for (int i = 0; i < merges; ++i, --top) add_to(slots[top - 1], slots[top]);
  }
  std::vector<std::string> nodes;
  std::vector<const void*> places;
  for (int k = 0; k < plan.nodes_of(c.rank()); ++k)
    nodes.push_back(encoded(slots[static_cast<std::size_t>(k)], type));
  for (const auto& node : nodes) places.push_back(node.data());
  std::string out(count * size_of(type), '\0');
  if (c.size() % 2 == 0 && !nodes.empty()) out.swap(nodes[0]), places[0] = out.data();  // in place
  c.tree_all_reduce(places, out.data(), count, type, plan);
  return out;
}

}  // namespace

void check_conformance(Communicator& c) {
  check_type<float>(c);
  check_type<double>(c);
  check_type<std::int64_t>(c);
  check_type<std::int32_t>(c);
  check_type<std::int16_t>(c);
  check_type<std::int8_t>(c);
  check_type<std::uint8_t>(c);
  for (const std::size_t bytes : {0, 1, 131072, 131073, 300007})
    for (const bool shared : {false, true}) check_messages(c, bytes, shared);
  check_parts(c);
  check_types(c);
  check_messages_beside_collectives(c);
}

void check_messages_beside_collectives(Communicator& c) {
  std::vector<std::thread> threads;
  std::vector<std::string> errors(2 * static_cast<std::size_t>(c.size()));
  const auto run = [&](std::size_t slot, auto body) {
    threads.emplace_back([&errors, slot, body] {
      try {
        for (std::size_t round = 0; round < 20; ++round) body(round);
      } catch (const std::exception& error) {
        errors[slot] = error.what();
      }
    });
  };
  for (int peer = 0; peer < c.size(); ++peer) {
    if (peer == c.rank()) continue;
    const auto slot = 2 * static_cast<std::size_t>(peer);
    run(slot, [&c, peer](std::size_t round) {
      const std::vector<int> data(round * 997, c.rank() * 100 + peer);
      c.send(data.data(), data.size() * sizeof(int), peer);
    });
    run(slot + 1, [&c, peer](std::size_t round) {
      std::vector<int> data(round * 997);
      c.recv(data.data(), data.size() * sizeof(int), peer);
      for (const int value : data)
        if (value != peer * 100 + c.rank()) throw WorldError("conformance: another's message");
    });
  }
  for (int round = 0; round < 20; ++round) check_reductions<float>(c, 509, false);
  for (auto& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty()) throw WorldError(error);
}

void check_with_delays(Communicator& c, int rounds) {
  RandomStream random(3, str("delay", c.rank()));
  for (int round = 0; round < rounds; ++round) {
    real_clock().sleep(static_cast<double>(random.below(2000, static_cast<std::uint64_t>(round))) *
                       1e-6);
    const auto count = static_cast<std::size_t>(round * 37);
    if (round % 2)
      check_movements<float>(c, count, round % 3 == 0);
    else
      check_reductions<float>(c, count, round % 3 == 0);
  }
}

std::string tree_sum(Communicator& c, int leaves, std::size_t count, DType type) {
  return type == DType::f64 ? tree_sum_of<double>(c, leaves, count, type)
                            : tree_sum_of<float>(c, leaves, count, type);
}

std::string tree_sum_twin(int leaves, std::size_t count, DType type) {
  const bool whole = size_of(type) == 2;
  return type == DType::f64 ? encoded(recursive_sum<double>({0, leaves}, count, whole), type)
                            : encoded(recursive_sum<float>({0, leaves}, count, whole), type);
}

}  // namespace tutti::comm
