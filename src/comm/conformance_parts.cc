// Conformance of the operations on uneven parts.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "comm/conformance.h"

namespace tutti::comm {
namespace {

using Counts = std::vector<std::size_t>;

std::size_t n(int value) { return static_cast<std::size_t>(value); }

std::size_t sum_of(const Counts& counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

std::size_t begin_of(const Counts& counts, int rank) {
  return sum_of({counts.begin(), counts.begin() + rank});
}

// Nothing, some zeros, primes, and one more than a chunk of 4096 bytes on one rank only.
constexpr int patterns = 4;
std::size_t count_of(int pattern, int rank) {
  constexpr std::size_t primes[] = {2, 3, 5, 7, 11, 13, 17, 509};
  const std::size_t counts[] = {0, rank % 2 ? 0 : 13 + n(rank), primes[n(rank) % 8],
                                rank % 3 == 1 ? 1025 : n(rank % 3)};
  return counts[pattern];
}

Counts counts_of(int pattern, int size) {
  Counts counts;
  for (int r = 0; r < size; ++r) counts.push_back(count_of(pattern, r));
  return counts;
}

float value_of(int rank, std::size_t index) { return static_cast<float>(n(rank) * 10000 + index); }

// `bytes` of ordinary or shared memory, with a guard behind them.
class Memory {
 public:
  Memory(Communicator& c, std::size_t bytes, bool shared) : own_(bytes + 1), bytes_(bytes) {
    void* memory = shared ? c.allocate_shared(bytes + 1) : nullptr;
    data_ = memory ? static_cast<std::byte*>(memory) : own_.data();
    data_[bytes] = std::byte{77};
  }
  std::byte* data() { return data_; }
  float* floats() { return reinterpret_cast<float*>(data_); }
  void expect(const std::byte* expected, const char* what) {
    if (bytes_ > 0 && std::memcmp(data_, expected, bytes_) != 0)
      throw WorldError(str("conformance: ", what, ": other bits in ", bytes_, " bytes"));
    if (data_[bytes_] != std::byte{77})
      throw WorldError(str("conformance: ", what, " wrote past its end"));
  }

 private:
  std::vector<std::byte> own_;
  std::size_t bytes_;
  std::byte* data_;
};

const std::byte* bytes_of(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

void check_all_gather(Communicator& c, const Counts& counts, bool shared, bool in_place) {
  std::vector<float> expected;
  for (int r = 0; r < c.size(); ++r)
    for (std::size_t i = 0; i < counts[n(r)]; ++i) expected.push_back(value_of(r, i));
  Memory in(c, counts[n(c.rank())] * 4, shared), out(c, sum_of(counts) * 4, shared);
  float* const mine = in_place ? out.floats() + begin_of(counts, c.rank()) : in.floats();
  for (std::size_t i = 0; i < counts[n(c.rank())]; ++i) mine[i] = value_of(c.rank(), i);
  c.all_gather_v(mine, out.data(), counts, DType::f32);
  out.expect(bytes_of(expected), "all_gather_v");
}

void check_all_to_all(Communicator& c, int pattern, bool shared) {
  const auto count = [&](int from, int to) { return count_of(pattern, (from * 3 + to) % 8); };
  Counts send, receive;
  std::vector<float> expected;
  for (int r = 0; r < c.size(); ++r) {
    send.push_back(count(c.rank(), r));
    receive.push_back(count(r, c.rank()));
    for (std::size_t i = 0; i < receive.back(); ++i)
      expected.push_back(value_of(r * 8 + c.rank(), i));
  }
  Memory in(c, sum_of(send) * 4, shared), out(c, sum_of(receive) * 4, shared);
  float* to = in.floats();
  for (int r = 0; r < c.size(); ++r)
    for (std::size_t i = 0; i < send[n(r)]; ++i) *to++ = value_of(c.rank() * 8 + r, i);
  c.all_to_all_v(in.data(), send, out.data(), receive, DType::f32);
  out.expect(bytes_of(expected), "all_to_all_v");
}

void fill_node(std::byte* data, std::size_t count, DType type, const std::string& name) {
  const RandomStream random(11, name);
  for (std::size_t i = 0; i < count; ++i) {
    const double x = random.normal(i) * std::exp2(static_cast<double>(i % 20));
    const auto narrow = static_cast<float>(x);
    if (type == DType::f64) std::memcpy(data + i * 8, &x, 8);
    if (type == DType::f32) std::memcpy(data + i * 4, &narrow, 4);
    if (type == DType::bf16)
      std::memcpy(data + i * 2, reinterpret_cast<const std::byte*>(&narrow) + 2, 2);
  }
}

// Against the same elements of the sum to all.
void check_tree_reduce_scatter(Communicator& c, const Counts& counts, DType type, bool shared,
                               bool in_place) {
  constexpr int leaves = 13;
  const auto plan = plan_reduction(even_ranges(leaves, c.size()));
  const std::size_t element = size_of(type), count = sum_of(counts);
  const std::size_t begin = begin_of(counts, c.rank()) * element;
  std::vector<Memory> nodes, copies;
  std::vector<const void*> places, copy_places;
  for (int k = 0; k < plan.nodes_of(c.rank()); ++k) {
    for (auto* list : {&nodes, &copies}) {
      list->emplace_back(c, count * element, shared);
      fill_node(list->back().data(), count, type, str(c.rank(), "/", k));
    }
    places.push_back(nodes.back().data());
    copy_places.push_back(copies.back().data());
  }
  Memory all(c, count * element, shared), out(c, counts[n(c.rank())] * element, shared);
  c.tree_all_reduce(copy_places, all.data(), count, type, plan);
  std::byte* const to = in_place ? nodes.back().data() + begin : out.data();
  c.tree_reduce_scatter(places, to, counts, type, plan);
  if (in_place) std::memmove(out.data(), to, counts[n(c.rank())] * element);
  out.expect(all.data() + begin, "tree_reduce_scatter");
}

void check_reduce_scatter(Communicator& c, const Counts& counts, Reduce reduce, bool shared) {
  const std::size_t count = sum_of(counts), begin = begin_of(counts, c.rank()) * 4;
  Memory in(c, count * 4, shared), all(c, count * 4, shared);
  Memory out(c, counts[n(c.rank())] * 4, shared);
  for (Memory* memory : {&in, &all})
    fill_node(memory->data(), count, DType::f32, str("rank ", c.rank()));
  c.all_reduce(all.data(), count, DType::f32, reduce);
  c.reduce_scatter_v(in.data(), out.data(), counts, DType::f32, reduce);
  out.expect(all.data() + begin, "reduce_scatter_v");
}

}  // namespace

void check_parts(Communicator& c) {
  for (int pattern = 0; pattern < patterns; ++pattern)
    for (const bool shared : {false, true}) {
      const Counts counts = counts_of(pattern, c.size());
      for (const bool in_place : {false, true}) {
        check_all_gather(c, counts, shared, in_place);
        for (const DType type : {DType::f32, DType::f64, DType::bf16})
          check_tree_reduce_scatter(c, counts, type, shared, in_place);
      }
      check_all_to_all(c, pattern, shared);
      for (const Reduce reduce : {Reduce::sum, Reduce::max})
        check_reduce_scatter(c, counts, reduce, shared);
    }
}

}  // namespace tutti::comm
