// How a rank waits for its peers, and what it says when they do not come.
#include <algorithm>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/memory_communicator.h"

namespace tutti::comm {
namespace {

constexpr double nap = 0.1;  // seconds between two looks at the world

// Counters wrap around.
bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void MemoryCommunicator::begin(const Call& call) {
  if (!broken_.empty()) throw WorldError(broken_);
  element_ = size_of(call.type);
  current_.sequence = sequence_ + 1;
  current_.operation = static_cast<std::int32_t>(call.operation);
  current_.type = static_cast<std::int32_t>(call.type);
  current_.count = call.count;
  current_.reduce = static_cast<std::int32_t>(call.reduce);
  current_.root = call.root;
  std::ranges::copy(call.parts, current_.parts);
  if (segment_->group().aborted.load() == 2) fail(nullptr, segment_->group().reason);
}

void MemoryCommunicator::synchronise() {
  publish(own(), own().phase, ++phase_);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    wait_for(nullptr, peer, segment_->rank(peer).phase, phase_);
  }
}

void MemoryCommunicator::check_peers(const Call& call) {
  const auto same_parts = [&](const Posted& theirs) {
    return !call.received.empty() || std::equal(call.parts.begin(), call.parts.end(), theirs.parts);
  };
  for (int peer = 0; peer < size(); ++peer)
    if (CallHead(posted(peer)) != CallHead(current_) || !same_parts(posted(peer)))
      fail(nullptr, str("rank ", peer, " called ", describe(posted(peer)),
                        "; all ranks must make the same calls in the same order"));
  if (call.received.empty()) return;
  for (int peer = 0; peer < size(); ++peer)
    if (posted(peer).parts[rank()] != call.received[static_cast<std::size_t>(peer)])
      fail(nullptr,
           str("rank ", peer, " sends ", posted(peer).parts[rank()], " elements here, where ",
               call.received[static_cast<std::size_t>(peer)], " are expected"));
}

template <class Arrived>
void MemoryCommunicator::check_world(const Message* message, int peer, double started,
                                     Arrived arrived) {
  GroupBlock& group = segment_->group();
  if (group.aborted.load() == 2) fail(message, group.reason);
  const auto late = [&](int r) {
    if (r == rank()) return false;
    return message ? r == peer && !arrived() : !reached(segment_->rank(r).phase.load(), phase_);
  };
  for (int r = 0; r < static_cast<int>(processes_.size()); ++r)
    if (late(r) && processes_[static_cast<std::size_t>(r)].ended() && late(r))
      fail(message, str("rank ", r, " (process ", segment_->rank(r).process.load(), ") has ended"));
  if (real_clock().now() - started < timeout()) return;
  std::string text;
  for (int r = 0; r < size(); ++r)
    if (late(r)) text += str(text.empty() ? "rank " : ", rank ", r);
  if (!text.empty()) fail(message, str(text, " did not come within ", timeout(), " s"));
}

// To a peer that may be waiting for this core. Where another program took it, and for long, the
// next waits sleep at once: who is woken has a better claim to a core than who gave it up.
void MemoryCommunicator::give_way() {
  constexpr double long_seconds = 300e-6;
  constexpr int waits = 200;
  const double before = real_clock().now();
  std::this_thread::yield();
  if (real_clock().now() - before > long_seconds) dear_waits_ = waits;
}

void MemoryCommunicator::wait_for(const Message* message, int peer,
                                  std::atomic<std::uint32_t>& counter, std::uint32_t target) {
  const auto arrived = [&] { return reached(counter.load(), target); };
  if (arrived()) return;
  const double started = real_clock().now();
  while (dear_waits_ <= 0 && real_clock().now() - started < options_.spin_seconds) {
    for (int i = 0; i < 32; ++i) {
      if (arrived()) return;
      relax();
    }
    if (crowded_) give_way();
  }
  if (dear_waits_ > 0)
    --dear_waits_;
  else
    std::this_thread::yield();
  for (;;) {
    const std::uint32_t seen = counter.load();
    if (reached(seen, target)) return;
    const double left = started + timeout() - real_clock().now();
    sleep_on(segment_->rank(peer), counter, seen, std::clamp(left, 0.0, nap));
    if (arrived()) return;
    check_world(message, peer, started, arrived);
  }
}

// Broken from now on, and so are the peers: they cannot go on without this rank.
void MemoryCommunicator::fail(const Message* message, const std::string& cause) {
  const std::string text =
      str(transport(), " group '", group(), "', rank ", rank(), " of ", size(), ", ",
          message ? describe(*message) : describe(current_), ": ", cause);
  abort(str("rank ", rank(), " failed: ", cause));
  if (!message) broken_ = text;
  throw WorldError(text);
}

void MemoryCommunicator::abort(const std::string& reason) {
  GroupBlock& group = segment_->group();
  std::uint32_t expected = 0;
  if (!group.aborted.compare_exchange_strong(expected, 1)) return;
  const std::size_t length = std::min(reason.size(), sizeof group.reason - 1);
  std::memcpy(group.reason, reason.data(), length);
  group.aborted.store(2);
  wake_all(*segment_, size());
}

}  // namespace tutti::comm
