#include "comm/memory_communicator.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/reduce.h"

namespace tutti::comm {
namespace {

std::size_t n(int value) { return static_cast<std::size_t>(value); }

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

std::uint64_t fingerprint(const ReductionPlan* plan) {
  std::uint64_t hash = 0;
  if (plan)
    for (const Range range : plan->ranges)
      hash = (hash ^ static_cast<unsigned>(range.end)) * 0x100000001b3u;
  return hash;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

MemoryCommunicator::MemoryCommunicator(std::shared_ptr<Segment> segment, int rank, int size,
                                       const MemoryOptions& options, bool threads)
    : Communicator(rank, size, options.group),
      segment_(std::move(segment)),
      options_(options),
      threads_(threads),
      ranks_plan_(plan_reduction(even_ranges(size, size))) {
  set_timeout(options.timeout);
}

void MemoryCommunicator::barrier() {
  Call call{.operation = Operation::barrier, .piece = {}};
  run(call);
}

void MemoryCommunicator::broadcast(void* data, std::size_t count, DType type, int root) {
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  Call call{.operation = Operation::broadcast,
            .type = type,
            .count = count,
            .root = root,
            .out = static_cast<std::byte*>(data),
            .piece = {}};
  if (rank() == root) set_pieces(call, data, 1);
  run(call);
}

void MemoryCommunicator::all_reduce(void* data, std::size_t count, DType type, Reduce reduce) {
  Call call{.operation = Operation::all_reduce,
            .type = type,
            .count = count,
            .reduce = reduce,
            .plan = &ranks_plan_,
            .out = static_cast<std::byte*>(data),
            .piece = {}};
  set_pieces(call, data, 1);
  run(call);
}

void MemoryCommunicator::all_gather(const void* in, void* out, std::size_t count, DType type) {
  Call call{.operation = Operation::all_gather,
            .type = type,
            .count = count,
            .out = static_cast<std::byte*>(out),
            .piece = {}};
  set_pieces(call, in, 1);
  run(call);
}

void MemoryCommunicator::reduce_scatter(const void* in, void* out, std::size_t count, DType type,
                                        Reduce reduce) {
  Call call{.operation = Operation::reduce_scatter,
            .type = type,
            .count = count,
            .reduce = reduce,
            .max_pieces = size(),
            .out = static_cast<std::byte*>(out),
            .piece = {}};
  set_pieces(call, in, size());
  run(call);
}

void MemoryCommunicator::all_to_all(const void* in, void* out, std::size_t count, DType type) {
  Call call{.operation = Operation::all_to_all,
            .type = type,
            .count = count,
            .max_pieces = size(),
            .out = static_cast<std::byte*>(out),
            .piece = {}};
  set_pieces(call, in, size());
  run(call);
}

void MemoryCommunicator::tree_all_reduce(std::span<const void* const> nodes, void* out,
                                         std::size_t count, DType type, const ReductionPlan& plan) {
  TUTTI_ASSERT(n(size()) == plan.ranges.size(), "plan for ", plan.ranges.size(), " ranks");
  TUTTI_ASSERT(n(plan.nodes_of(rank())) == nodes.size(), nodes.size(), " nodes");
  Call call{.operation = Operation::tree_all_reduce,
            .type = type,
            .count = count,
            .max_pieces = plan.max_nodes,
            .plan = &plan,
            .out = static_cast<std::byte*>(out),
            .pieces = static_cast<int>(nodes.size()),
            .piece = {}};
  std::transform(nodes.begin(), nodes.end(), call.piece.begin(), bytes_of);
  run(call);
}

void MemoryCommunicator::set_pieces(Call& call, const void* data, int pieces) const {
  call.pieces = pieces;
  for (int k = 0; k < pieces; ++k)
    call.piece[n(k)] = bytes_of(data) + n(k) * call.count * size_of(call.type);
}

void MemoryCommunicator::run(Call& call) {
  begin(call);
  ++sequence_;
  stride_ = aligned(call.count * element_);
  eager_ = n(call.max_pieces) * stride_ <= options_.eager_bytes;
  chunk_begin_ = 0;
  if (eager_)
    run_eager(call);
  else
    run_in_chunks(call);
}

// The eager slots alternate, so nobody need wait until all have read: a rank writes the same slot
// again two calls later, and by then the call between has shown that its peers are done.
void MemoryCommunicator::run_eager(const Call& call) {
  copy_in(call, segment_->eager(rank(), sequence_), stride_, 0, call.count);
  post(call, false);
  synchronise();
  check_peers();
  work(call, 0, call.count);
}

void MemoryCommunicator::run_in_chunks(const Call& call) {
  const std::size_t bytes = call.count * element_;
  bool in_place = !call.reduces_to_all() || visible(call.out, bytes);
  for (int k = 0; k < call.pieces; ++k) in_place = in_place && visible(call.piece[n(k)], bytes);
  stride_ = options_.chunk_bytes / n(call.max_pieces) / 64 * 64;
  std::size_t size = std::min(stride_ / element_, call.count);
  if (!in_place) copy_in(call, segment_->stage(rank()), stride_, 0, size);
  post(call, in_place);
  synchronise();
  check_peers();
  if (everybody_in_place()) size = call.count;
  for (std::size_t first = 0;;) {
    const std::size_t count = std::min(size, call.count - first);
    chunk_begin_ = first;
    work(call, first, count);
    synchronise();
    if (!in_place && call.reduces_to_all())
      copy_bytes(call.out + first * element_, segment_->stage(rank()), count * element_);
    first += count;
    if (first == call.count) return;
    if (!in_place)
      copy_in(call, segment_->stage(rank()), stride_, first, std::min(size, call.count - first));
    synchronise();
  }
}

void MemoryCommunicator::post(const Call& call, bool in_place) {
  Posted& mine = posted(rank());
  current_.sequence = sequence_;
  current_.plan = fingerprint(call.plan);
  current_.in_place = in_place;
  for (int k = 0; k < call.pieces; ++k)
    current_.location[k] = segment_->to_location(call.piece[n(k)]);
  current_.out = segment_->to_location(call.out);
  mine = current_;
}

void MemoryCommunicator::copy_in(const Call& call, std::byte* to, std::size_t stride,
                                 std::size_t first, std::size_t count) const {
  for (int k = 0; k < call.pieces; ++k)
    copy_bytes(to + n(k) * stride, call.piece[n(k)] + first * element_, count * element_);
}

void MemoryCommunicator::work(const Call& call, std::size_t first, std::size_t count) {
  const auto take = [&](int from, int piece, std::size_t at) {
    copy_bytes(call.out + (at + first) * element_, source(from, piece, first), count * element_);
  };
  switch (call.operation) {
    case Operation::broadcast:
      if (rank() != call.root) take(call.root, 0, 0);
      return;
    case Operation::all_gather:
      for (int peer = 0; peer < size(); ++peer) take(peer, 0, n(peer) * call.count);
      return;
    case Operation::all_to_all:
      for (int peer = 0; peer < size(); ++peer) take(peer, rank(), n(peer) * call.count);
      return;
    case Operation::reduce_scatter:
      return reduce_own_piece(call, first, count);
    case Operation::all_reduce:
    case Operation::tree_all_reduce:
      return reduce_part(call, first, count);
    default:
      return;
  }
}

// This rank's slice of a chunk, written into everybody's output: nobody else reads or writes there.
// Eager calls have no common output; each rank reduces all for itself, along the same tree.
void MemoryCommunicator::reduce_part(const Call& call, std::size_t first, std::size_t count) {
  const std::size_t line = 64 / element_;
  const std::size_t each = (count + n(size()) * line - 1) / (n(size()) * line) * line;
  const std::size_t begin = eager_ ? 0 : std::min(count, each * n(rank()));
  const std::size_t end = eager_ ? count : std::min(count, begin + each);
  constexpr std::size_t most = max_memory_ranks * 32;
  std::array<const std::byte*, most> sources;
  std::array<std::byte*, max_memory_ranks> targets;
  std::size_t used = 0;
  for (int peer = 0; peer < size(); ++peer) {
    for (int k = 0; k < call.plan->nodes_of(peer); ++k)
      sources[used++] = source(peer, k, first) + begin * element_;
    if (!eager_) targets[n(peer)] = target(peer, first) + begin * element_;
  }
  if (eager_) targets[0] = call.out;
  reduce_elements(call.plan->steps, {sources.data(), used},
                  {targets.data(), eager_ ? 1 : n(size())}, end - begin, call.type, call.reduce);
}

void MemoryCommunicator::reduce_own_piece(const Call& call, std::size_t first, std::size_t count) {
  std::array<const std::byte*, max_memory_ranks> sources;
  for (int peer = 0; peer < size(); ++peer) sources[n(peer)] = source(peer, rank(), first);
  std::byte* const target = call.out + first * element_;
  reduce_elements(ranks_plan_.steps, {sources.data(), n(size())}, {&target, 1}, count, call.type,
                  call.reduce);
}

const std::byte* MemoryCommunicator::source(int peer, int piece, std::size_t first) const {
  if (eager_) return segment_->eager(peer, sequence_) + n(piece) * stride_ + first * element_;
  const Posted& theirs = posted(peer);
  if (theirs.in_place) return segment_->from_location(theirs.location[piece]) + first * element_;
  return segment_->stage(peer) + n(piece) * stride_ + (first - chunk_begin_) * element_;
}

std::byte* MemoryCommunicator::target(int peer, std::size_t first) const {
  const Posted& theirs = posted(peer);
  if (theirs.in_place) return segment_->from_location(theirs.out) + first * element_;
  return segment_->stage(peer) + (first - chunk_begin_) * element_;
}

bool MemoryCommunicator::visible(const void* data, std::size_t bytes) const {
  return (threads_ && !options_.force_staging) || segment_->holds(data, bytes);
}

bool MemoryCommunicator::everybody_in_place() {
  for (int peer = 0; peer < size(); ++peer)
    if (!posted(peer).in_place) return false;
  return true;
}

void MemoryCommunicator::send(const void* data, std::size_t bytes, int to) {
  TUTTI_ASSERT(0 <= to && to < size() && to != rank(), "send to ", to);
  begin({.operation = Operation::send, .count = bytes, .piece = {}}, to);
  RankBlock& mine = own();
  std::uint32_t sent = mine.sent[to].load();
  auto& received = segment_->rank(to).received[rank()];
  const auto put = [&](const void* from, std::size_t size) {
    wait_for(to, received, sent - 1);  // one of the two chunks is free
    std::memcpy(segment_->message(rank(), to, sent), from, size);
    publish(mine, mine.sent[to], ++sent);
  };
  const std::uint64_t header = bytes;
  put(&header, sizeof header);
  for (std::size_t first = 0; first < bytes; first += Segment::message_chunk)
    put(bytes_of(data) + first, std::min(bytes - first, Segment::message_chunk));
}

void MemoryCommunicator::recv(void* data, std::size_t bytes, int from) {
  TUTTI_ASSERT(0 <= from && from < size() && from != rank(), "recv from ", from);
  begin({.operation = Operation::recv, .count = bytes, .piece = {}}, from);
  RankBlock& mine = own();
  std::uint32_t received = mine.received[from].load();
  auto& sent = segment_->rank(from).sent[rank()];
  const auto take = [&](void* to, std::size_t size) {
    wait_for(from, sent, received + 1);
    std::memcpy(to, segment_->message(from, rank(), received), size);
    publish(mine, mine.received[from], ++received);
  };
  std::uint64_t announced = 0;
  take(&announced, sizeof announced);
  if (announced != bytes) fail(str("rank ", from, " sends ", announced, " bytes"));
  for (std::size_t first = 0; first < bytes; first += Segment::message_chunk)
    take(static_cast<std::byte*>(data) + first, std::min(bytes - first, Segment::message_chunk));
}

void* MemoryCommunicator::allocate_shared(std::size_t bytes) {
  return segment_->allocate(rank(), bytes);
}

}  // namespace tutti::comm
