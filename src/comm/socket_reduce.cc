// The collectives that sum. Part r of the sum is made by rank r, which gets that part of all nodes
// of all ranks. Chunks keep the wire busy while a rank sums: on each connection chunk k + window of
// the nodes goes before chunk k of the sum, on all alike, so that both ends know what comes next.
// Nobody reads chunk k + window before it has summed chunk k; so the rank that is furthest behind
// always finds what it waits for on its way, and somebody goes on.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/copy.h"
#include "comm/reduce.h"
#include "comm/socket_communicator.h"

namespace tutti::comm {
namespace {

std::size_t n(int value) { return static_cast<std::size_t>(value); }

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

constexpr std::size_t window = 2, slots = window + 1;
constexpr std::size_t most_sources = 16;  // among which chunk_bytes is divided

// How many of the elements [first, first + count) a part of `length` has.
std::size_t within(std::size_t length, std::size_t first, std::size_t count) {
  return first < length ? std::min(count, length - first) : 0;
}

template <class T>
void grow(std::vector<T>& scratch, std::size_t size) {
  if (scratch.size() < size) scratch.resize(size);
}

}  // namespace

void SocketCommunicator::all_reduce(void* data, std::size_t count, DType type, Reduce reduce) {
  check_reduction(type, reduce);
  const void* const node = data;
  sum({.operation = Operation::all_reduce,
       .type = type,
       .count = count,
       .reduce = reduce,
       .plan = &ranks_plan_},
      {&node, 1}, data);
}

void SocketCommunicator::reduce(const void* in, void* out, std::size_t count, DType type,
                                Reduce reduce, int root) {
  check_reduction(type, reduce);
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  sum({.operation = Operation::reduce,
       .type = type,
       .count = count,
       .reduce = reduce,
       .root = root,
       .plan = &ranks_plan_},
      {&in, 1}, rank() == root ? out : nullptr);
}

void SocketCommunicator::reduce_scatter_v(const void* in, void* out,
                                          std::span<const std::size_t> counts, DType type,
                                          Reduce reduce) {
  check_reduction(type, reduce);
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  sum({.operation = Operation::reduce_scatter,
       .type = type,
       .count = std::ranges::max(counts),
       .reduce = reduce,
       .plan = &ranks_plan_,
       .parts = counts},
      {&in, 1}, out);
}

void SocketCommunicator::tree_all_reduce(std::span<const void* const> nodes, void* out,
                                         std::size_t count, DType type, const ReductionPlan& plan) {
  check_nodes(plan, nodes.size());
  sum({.operation = Operation::tree_all_reduce, .type = type, .count = count, .plan = &plan}, nodes,
      out);
}

void SocketCommunicator::tree_reduce_scatter(std::span<const void* const> nodes, void* out,
                                             std::span<const std::size_t> counts, DType type,
                                             const ReductionPlan& plan) {
  check_nodes(plan, nodes.size());
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  sum({.operation = Operation::tree_reduce_scatter,
       .type = type,
       .count = std::ranges::max(counts),
       .plan = &plan,
       .parts = counts},
      nodes, out);
}

void SocketCommunicator::check_nodes(const ReductionPlan& plan, std::size_t nodes) const {
  TUTTI_ASSERT(n(size()) == plan.ranges.size(), "plan for ", plan.ranges.size(), " ranks");
  TUTTI_ASSERT(n(plan.nodes_of(rank())) == nodes, nodes, " nodes");
}

void SocketCommunicator::sum(const Call& call, std::span<const void* const> nodes, void* out) {
  Reduction reduction{.nodes = nodes, .plan = *call.plan, .type = call.type, .reduce = call.reduce};
  cut(call, reduction);
  place(call, reduction, bytes_of(out));
  begin(call);
  for (std::size_t k = 0; k < slots; ++k) post_sources(reduction, k);
  for (std::size_t k = 0; k < reduction.chunks; ++k) {
    drive([&] { return has_come(reduction, k); });
    sum_chunk(reduction, k);
    post_result(reduction, k);
    post_sources(reduction, k + slots);
  }
  finish();
}

// Who makes what.
void SocketCommunicator::cut(const Call& call, Reduction& reduction) {
  const bool scatters = !call.parts.empty(), to_root = call.operation == Operation::reduce;
  const std::size_t element = size_of(call.type), nodes = n(reduction.plan.max_nodes);
  const std::size_t sources = n(reduction.plan.first.back());
  reduction.in_one_round =
      !scatters && call.count * element * nodes * n(size()) <= options_.eager_bytes;
  std::size_t begin = 0;
  for (int r = 0; r < size(); ++r) {
    std::size_t count = call.count / n(size()) + (n(r) < call.count % n(size()));
    if (scatters) count = call.parts[n(r)];
    if (reduction.in_one_round) count = to_root && r != call.root ? 0 : call.count;
    parts_[n(r)] = {reduction.in_one_round ? 0 : begin, count};
    begin += count;
  }
  if (!scatters && !reduction.in_one_round) {
    reduction.keepers_begin = to_root ? call.root : 0;
    reduction.keepers_end = to_root ? call.root + 1 : size();
  }
  std::size_t longest = 0;
  for (const Part part : parts_) longest = std::max(longest, part.count);
  reduction.element = element;
  reduction.chunk = reduction.in_one_round
                        ? call.count
                        : options_.chunk_bytes / std::min(sources, most_sources) / element;
  reduction.chunks = longest == 0 ? 0 : (longest + reduction.chunk - 1) / reduction.chunk;
}

// Where things go: the result, and what comes from others until it is summed.
void SocketCommunicator::place(const Call& call, Reduction& reduction, std::byte* out) {
  const Part own = parts_[n(rank())];
  const bool keeps = reduction.keeps(rank());
  if (keeps) reduction.whole = out;
  reduction.result = keeps ? out + own.begin * reduction.element : out;
  if (!keeps && out == nullptr && call.operation == Operation::reduce) {
    grow(result_, own.count * reduction.element);
    reduction.result = result_.data();
  }
  const std::size_t sources = n(reduction.plan.first.back());
  grow(sources_, sources);
  grow(marks_, slots * n(size()));
  grow(chunks_, slots * sources * reduction.chunk * reduction.element);
}

std::size_t SocketCommunicator::elements(const Reduction& reduction, int part,
                                         std::size_t chunk) const {
  return within(parts_[n(part)].count, chunk * reduction.chunk, reduction.chunk);
}

// Where a source of another rank waits for its chunk to be summed.
std::byte* SocketCommunicator::waiting(const Reduction& reduction, int source, std::size_t chunk) {
  const std::size_t sources = n(reduction.plan.first.back());
  return chunks_.data() +
         (chunk % slots * sources + n(source)) * reduction.chunk * reduction.element;
}

// Chunk `chunk` of each peer's part of the own nodes goes out, and of the own part comes in.
void SocketCommunicator::post_sources(const Reduction& reduction, std::size_t chunk) {
  if (chunk >= reduction.chunks) return;
  const std::size_t element = reduction.element, first = chunk * reduction.chunk;
  each_peer([&](int r) {
    for (const void* node : reduction.nodes)
      send_to(r, bytes_of(node) + (parts_[n(r)].begin + first) * element,
              elements(reduction, r, chunk) * element);
    for (int s = reduction.plan.first[n(r)]; s < reduction.plan.first[n(r) + 1]; ++s)
      receive_from(r, waiting(reduction, s, chunk), elements(reduction, rank(), chunk) * element);
    marks_[chunk % slots * n(size()) + n(r)] = link(r).awaited();
  });
}

// In one round the result may lie where the own nodes are: these must have gone.
bool SocketCommunicator::has_come(const Reduction& reduction, std::size_t chunk) const {
  bool all = true;
  each_peer([&](int r) {
    const Link& from = link(r);
    all = all && from.received() >= marks_[chunk % slots * n(size()) + n(r)] &&
          !(reduction.in_one_round && from.sending());
  });
  return all;
}

void SocketCommunicator::sum_chunk(const Reduction& reduction, std::size_t chunk) {
  const std::size_t first = chunk * reduction.chunk, element = reduction.element;
  const ReductionPlan& plan = reduction.plan;
  for (int r = 0; r < size(); ++r)
    for (int s = plan.first[n(r)]; s < plan.first[n(r) + 1]; ++s)
      sources_[n(s)] = r == rank() ? bytes_of(reduction.nodes[n(s - plan.first[n(r)])]) +
                                         (parts_[n(r)].begin + first) * element
                                   : waiting(reduction, s, chunk);
  std::byte* const target = reduction.result + first * element;
  reduce_elements(plan.steps, {sources_.data(), n(plan.first.back())}, {&target, 1},
                  elements(reduction, rank(), chunk), reduction.type, reduction.reduce);
}

// The chunk of the own part goes to who keeps all parts, and theirs come.
void SocketCommunicator::post_result(const Reduction& reduction, std::size_t chunk) {
  const std::size_t first = chunk * reduction.chunk, element = reduction.element;
  each_peer([&](int r) {
    if (reduction.keeps(r))
      send_to(r, reduction.result + first * element, elements(reduction, rank(), chunk) * element);
    if (reduction.keeps(rank()))
      receive_from(r, reduction.whole + (parts_[n(r)].begin + first) * element,
                   elements(reduction, r, chunk) * element);
  });
}

}  // namespace tutti::comm
