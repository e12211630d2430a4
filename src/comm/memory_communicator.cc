#include "comm/memory_communicator.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "comm/copy.h"
#include "comm/reduce.h"

namespace tutti::comm {
namespace {

std::size_t n(int value) { return static_cast<std::size_t>(value); }

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// How many of the elements [first, first + count) a piece of `length` has.
std::size_t within(std::size_t length, std::size_t first, std::size_t count) {
  return first < length ? std::min(count, length - first) : 0;
}

constexpr std::size_t most_sources = max_memory_ranks * 32;

}  // namespace

MemoryCommunicator::MemoryCommunicator(std::shared_ptr<Segment> segment, int rank, int size,
                                       const MemoryOptions& options, bool threads)
    : Communicator(rank, size, options.group),
      segment_(std::move(segment)),
      options_(options),
      threads_(threads),
      crowded_(n(size) > std::thread::hardware_concurrency()),
      ranks_plan_(plan_reduction(even_ranges(size, size))) {
  set_timeout(options.timeout);
}

void MemoryCommunicator::barrier() {
  Call call{.operation = Operation::barrier};
  run(call);
}

void MemoryCommunicator::broadcast(void* data, std::size_t count, DType type, int root) {
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  Call call{.operation = Operation::broadcast,
            .type = type,
            .count = count,
            .root = root,
            .out = static_cast<std::byte*>(data),
            .nodes = rank() == root ? 1 : 0,
            .node = {bytes_of(data)}};
  run(call);
}

void MemoryCommunicator::all_reduce(void* data, std::size_t count, DType type, Reduce reduce) {
  check_reduction(type, reduce);
  Call call{.operation = Operation::all_reduce,
            .type = type,
            .count = count,
            .reduce = reduce,
            .plan = &ranks_plan_,
            .out = static_cast<std::byte*>(data),
            .nodes = 1,
            .node = {bytes_of(data)}};
  run(call);
}

void MemoryCommunicator::all_gather_v(const void* in, void* out,
                                      std::span<const std::size_t> counts, DType type) {
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  Call call{.operation = Operation::all_gather,
            .type = type,
            .count = std::ranges::max(counts),
            .parts = counts,
            .out = static_cast<std::byte*>(out),
            .nodes = 1,
            .node = {bytes_of(in)}};
  run(call);
}

void MemoryCommunicator::reduce_scatter_v(const void* in, void* out,
                                          std::span<const std::size_t> counts, DType type,
                                          Reduce reduce) {
  check_reduction(type, reduce);
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  Call call{.operation = Operation::reduce_scatter,
            .type = type,
            .count = std::ranges::max(counts),
            .reduce = reduce,
            .scatters = true,
            .parts = counts,
            .plan = &ranks_plan_,
            .out = static_cast<std::byte*>(out),
            .nodes = 1,
            .node = {bytes_of(in)}};
  run(call);
}

void MemoryCommunicator::all_to_all_v(const void* in, std::span<const std::size_t> send_counts,
                                      void* out, std::span<const std::size_t> receive_counts,
                                      DType type) {
  TUTTI_ASSERT(send_counts.size() == n(size()) && receive_counts.size() == n(size()),
               send_counts.size(), " and ", receive_counts.size(), " counts");
  Call call{.operation = Operation::all_to_all,
            .type = type,
            .scatters = true,
            .parts = send_counts,
            .received = receive_counts,
            .out = static_cast<std::byte*>(out),
            .nodes = 1,
            .node = {bytes_of(in)}};
  run(call);
}

void MemoryCommunicator::tree_all_reduce(std::span<const void* const> nodes, void* out,
                                         std::size_t count, DType type, const ReductionPlan& plan) {
  check_nodes(plan, nodes.size());
  Call call{.operation = Operation::tree_all_reduce,
            .type = type,
            .count = count,
            .max_nodes = plan.max_nodes,
            .plan = &plan,
            .out = static_cast<std::byte*>(out),
            .nodes = static_cast<int>(nodes.size())};
  std::ranges::transform(nodes, call.node.begin(), bytes_of);
  run(call);
}

void MemoryCommunicator::tree_reduce_scatter(std::span<const void* const> nodes, void* out,
                                             std::span<const std::size_t> counts, DType type,
                                             const ReductionPlan& plan) {
  check_nodes(plan, nodes.size());
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  Call call{.operation = Operation::tree_reduce_scatter,
            .type = type,
            .count = std::ranges::max(counts),
            .max_nodes = plan.max_nodes,
            .scatters = true,
            .parts = counts,
            .plan = &plan,
            .out = static_cast<std::byte*>(out),
            .nodes = static_cast<int>(nodes.size())};
  std::ranges::transform(nodes, call.node.begin(), bytes_of);
  run(call);
}

void MemoryCommunicator::check_nodes(const ReductionPlan& plan, std::size_t nodes) const {
  TUTTI_ASSERT(n(size()) == plan.ranges.size(), "plan for ", plan.ranges.size(), " ranks");
  TUTTI_ASSERT(n(plan.nodes_of(rank())) == nodes && plan.max_nodes <= max_memory_ranks, nodes,
               " nodes");
}

// What all ranks know beforehand, and only that, decides whether a call is eager.
void MemoryCommunicator::run(Call& call) {
  begin(call);
  ++sequence_;
  const std::size_t pieces = n(call.max_nodes) * n(pieces_a_node(call));
  stride_ = aligned(call.count * element_);
  eager_ = call.received.empty() && pieces * stride_ <= options_.eager_bytes;
  chunk_begin_ = 0;
  if (eager_) return run_eager(call);
  stride_ = options_.chunk_bytes / pieces / 64 * 64;
  TUTTI_ASSERT(stride_ > 0, pieces, " pieces in chunks of ", options_.chunk_bytes, " bytes");
  run_in_chunks(call);
}

// The eager slots alternate, so nobody need wait until all have read: a rank writes the same slot
// again two calls later, and by then the call between has shown that its peers are done.
void MemoryCommunicator::run_eager(const Call& call) {
  copy_in(call, segment_->eager(rank(), sequence_), 0, call.count);
  post(call, false);
  synchronise();
  check_peers(call);
  work(call, 0, call.count);
}

void MemoryCommunicator::run_in_chunks(const Call& call) {
  std::byte* const stage = segment_->stage(rank());
  const bool in_place = all_visible(call);
  std::size_t size = stride_ / element_;
  if (!in_place) copy_in(call, stage, 0, size);
  post(call, in_place);
  synchronise();
  check_peers(call);
  const std::size_t longest = longest_piece(call);
  if (everybody_in_place()) size = longest;
  for (std::size_t first = 0;;) {
    const std::size_t count = std::min(size, longest - first);
    chunk_begin_ = first;
    work(call, first, count);
    synchronise();
    if (!in_place && gets_whole(call, rank()))
      copy_bytes(call.out + first * element_, stage, count * element_);
    first += count;
    if (first == longest) return;
    if (!in_place) copy_in(call, stage, first, size);
    synchronise();
  }
}

bool MemoryCommunicator::all_visible(const Call& call) const {
  std::size_t count = call.count;
  if (call.scatters)
    count = sum_of(call.parts);
  else if (!call.parts.empty())
    count = call.parts[n(rank())];
  bool all = !gets_whole(call, rank()) || visible(call.out, count * element_);
  for (int k = 0; k < call.nodes; ++k) all = all && visible(call.node[n(k)], count * element_);
  return all;
}

std::size_t MemoryCommunicator::longest_piece(const Call& call) const {
  std::size_t longest = call.count;
  if (!call.received.empty())
    for (int peer = 0; peer < size(); ++peer)
      for (int r = 0; r < size(); ++r) longest = std::max(longest, posted(peer).parts[r]);
  return longest;
}

void MemoryCommunicator::post(const Call& call, bool in_place) {
  current_.plan = fingerprint(call.plan);
  current_.in_place = in_place;
  Posted& mine = posted(rank());
  static_cast<PostedCall&>(mine) = current_;
  std::ranges::copy(call.parts, mine.parts);
  if (!in_place) return;
  for (int k = 0; k < call.nodes; ++k) mine.location[k] = segment_->to_location(call.node[n(k)]);
  mine.out = segment_->to_location(call.out);
}

// Elements [first, first + count), as far as they exist, of all pieces that this rank brings.
void MemoryCommunicator::copy_in(const Call& call, std::byte* to, std::size_t first,
                                 std::size_t count) const {
  for (int k = 0; k < call.nodes; ++k) {
    const std::byte* from = call.node[n(k)];
    for (int part = 0; part < pieces_a_node(call); ++part, to += stride_) {
      const std::size_t length = call.scatters        ? call.parts[n(part)]
                                 : call.parts.empty() ? call.count
                                                      : call.parts[n(rank())];
      copy_bytes(to, from + first * element_, within(length, first, count) * element_);
      from += length * element_;
    }
  }
}

void MemoryCommunicator::work(const Call& call, std::size_t first, std::size_t count) {
  switch (call.operation) {
    case Operation::barrier:
      return;
    case Operation::broadcast:
      if (rank() != call.root)
        copy_bytes(call.out + first * element_, source(call, call.root, 0, 0, first),
                   count * element_);
      return;
    case Operation::all_gather:
    case Operation::all_to_all:
      return gather(call, first, count);
    case Operation::reduce_scatter:
    case Operation::tree_reduce_scatter:
      return reduce_own_part(call, first, count);
    case Operation::gather:
      if (rank() == call.root) gather(call, first, count);
      return;
    case Operation::scatter:
      return copy_bytes(call.out + first * element_, source(call, call.root, 0, rank(), first),
                        within(call.parts[n(rank())], first, count) * element_);
    case Operation::reduce:
    case Operation::all_reduce:
    case Operation::tree_all_reduce:
      return reduce_part(call, first, count);
  }
}

void MemoryCommunicator::gather(const Call& call, std::size_t first, std::size_t count) {
  const auto lengths = call.received.empty() ? call.parts : call.received;
  std::byte* to = call.out;
  for (int peer = 0; peer < size(); ++peer) {
    const std::size_t length = lengths[n(peer)];
    copy_bytes(to + first * element_, source(call, peer, 0, rank(), first),
               within(length, first, count) * element_);
    to += length * element_;
  }
}

// This rank's slice of a chunk, written into everybody's (or the root's) output: nobody else reads
// or writes there. Eager calls have no common output; each rank reduces all for itself, along the
// same tree.
void MemoryCommunicator::reduce_part(const Call& call, std::size_t first, std::size_t count) {
  const std::size_t line = 64 / element_;
  const std::size_t each = (count + n(size()) * line - 1) / (n(size()) * line) * line;
  const std::size_t begin = eager_ ? 0 : std::min(count, each * n(rank()));
  const std::size_t end = eager_ ? count : std::min(count, begin + each);
  std::array<const std::byte*, most_sources> sources;
  std::array<std::byte*, max_memory_ranks> targets;
  std::size_t used = 0, outputs = 0;
  if (eager_ && !gets_whole(call, rank())) return;
  if (eager_) targets[outputs++] = call.out;
  for (int peer = 0; peer < size(); ++peer) {
    for (int k = 0; k < call.plan->nodes_of(peer); ++k)
      sources[used++] = source(call, peer, k, 0, first) + begin * element_;
    if (!eager_ && gets_whole(call, peer))
      targets[outputs++] = target(peer, first) + begin * element_;
  }
  reduce_elements(call.plan->steps, {sources.data(), used}, {targets.data(), outputs}, end - begin,
                  call.type, call.reduce);
}

void MemoryCommunicator::reduce_own_part(const Call& call, std::size_t first, std::size_t count) {
  std::array<const std::byte*, most_sources> sources;
  std::size_t used = 0;
  for (int peer = 0; peer < size(); ++peer)
    for (int k = 0; k < call.plan->nodes_of(peer); ++k)
      sources[used++] = source(call, peer, k, rank(), first);
  std::byte* const target = call.out + first * element_;
  reduce_elements(call.plan->steps, {sources.data(), used}, {&target, 1},
                  within(call.parts[n(rank())], first, count), call.type, call.reduce);
}

const std::byte* MemoryCommunicator::source(const Call& call, int peer, int node, int part,
                                            std::size_t first) const {
  if (!call.scatters) part = 0;
  const std::size_t staged = n(node * pieces_a_node(call) + part) * stride_;
  if (eager_) return segment_->eager(peer, sequence_) + staged + first * element_;
  const Posted& theirs = posted(peer);
  if (!theirs.in_place) return segment_->stage(peer) + staged + (first - chunk_begin_) * element_;
  const std::size_t before = sum_of({theirs.parts, n(part)});
  return segment_->from_location(theirs.location[node]) + (before + first) * element_;
}

std::byte* MemoryCommunicator::target(int peer, std::size_t first) const {
  const Posted& theirs = posted(peer);
  if (theirs.in_place) return segment_->from_location(theirs.out) + first * element_;
  return segment_->stage(peer) + (first - chunk_begin_) * element_;
}

bool MemoryCommunicator::visible(const void* data, std::size_t bytes) const {
  return bytes == 0 || (threads_ && !options_.force_staging) || segment_->holds(data, bytes);
}

bool MemoryCommunicator::everybody_in_place() {
  for (int peer = 0; peer < size(); ++peer)
    if (!posted(peer).in_place) return false;
  return true;
}

void* MemoryCommunicator::allocate_shared(std::size_t bytes) {
  return segment_->allocate(rank(), bytes);
}

}  // namespace tutti::comm
