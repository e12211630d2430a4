#include "comm/socket_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace tutti::comm {
namespace {

std::size_t n(int value) { return static_cast<std::size_t>(value); }

constexpr std::size_t head_words = sizeof(CallHead) / sizeof(std::uint64_t);

std::vector<Connection> lane_of(std::vector<Connections>& connections, Lane lane) {
  std::vector<Connection> result;
  for (Connections& pair : connections)
    result.push_back(std::move(pair[static_cast<std::size_t>(lane)]));
  return result;
}

template <class T>
std::vector<std::unique_ptr<T>> peers_of(std::vector<Connection> connections) {
  std::vector<std::unique_ptr<T>> result;
  for (Connection& connection : connections)
    result.push_back(connection.socket.get() < 0 ? nullptr
                                                 : std::make_unique<T>(std::move(connection)));
  return result;
}

}  // namespace

SocketCommunicator::SocketCommunicator(std::vector<Connections> connections, int rank,
                                       const SocketOptions& options)
    : Communicator(rank, static_cast<int>(connections.size()), options.group),
      options_(options),
      alarm_(lane_of(connections, Lane::alarm)),
      peers_(peers_of<Peer>(lane_of(connections, Lane::collectives))),
      messages_(peers_of<Messages>(lane_of(connections, Lane::messages))),
      ranks_plan_(plan_reduction(even_ranges(size(), size()))),
      own_head_(head_words + n(size())),
      peer_heads_(own_head_.size() * n(size())),
      parts_(n(size())) {
  set_timeout(options.timeout);
}

void SocketCommunicator::begin(const Call& call) {
  if (!broken_.empty()) throw WorldError(broken_);
  call_ = &call;
  head_ = {.sequence = ++sequence_,
           .count = call.count,
           .plan = fingerprint(call.plan),
           .operation = static_cast<std::int32_t>(call.operation),
           .type = static_cast<std::int32_t>(call.type),
           .reduce = static_cast<std::int32_t>(call.reduce),
           .root = call.root};
  std::memcpy(own_head_.data(), &head_, sizeof head_);
  std::fill(std::ranges::copy(call.parts, own_head_.begin() + head_words).out, own_head_.end(), 0);
  last_moved_ = real_clock().now();
  if (alarm_.raised()) fail(alarm_.reason());
  const std::size_t bytes = own_head_.size() * sizeof(std::uint64_t);
  each_peer([&](int r) {
    Peer& peer = *peers_[n(r)];
    peer.readable = peer.writable = true;
    peer.checked = false;
    send_to(r, own_head_.data(), bytes);
    receive_from(r, peer_heads_.data() + n(r) * own_head_.size(), bytes);
    peer.head_end = peer.link.awaited();
  });
}

void SocketCommunicator::send_to(int peer, const void* data, std::size_t bytes) {
  link(peer).queue_out(data, bytes);
}

void SocketCommunicator::receive_from(int peer, void* data, std::size_t bytes) {
  link(peer).queue_in(data, bytes);
}

void SocketCommunicator::finish() {
  drive([&] {
    bool idle = true;
    each_peer([&](int r) { idle = idle && !link(r).sending() && !link(r).receiving(); });
    return idle;
  });
}

// A half that stopped short has used up what the kernel had; poll() says when there is more.
bool SocketCommunicator::move(int r) {
  Peer& peer = *peers_[n(r)];
  bool came = false;
  try {
    if (peer.writable && peer.link.sending()) {
      peer.link.push();
      peer.writable = !peer.link.sending();
    }
    if (peer.readable && peer.link.receiving()) {
      came = peer.link.pull();
      peer.readable = !peer.link.receiving();
    }
  } catch (const LinkLost& error) {
    fail(lost(r, error));
  }
  if (!peer.checked && peer.link.received() >= peer.head_end) check_call(r);
  return came;
}

void SocketCommunicator::check_call(int r) {
  peers_[n(r)]->checked = true;
  const auto theirs = std::span(peer_heads_).subspan(n(r) * own_head_.size(), own_head_.size());
  const auto parts = theirs.subspan(head_words);
  CallHead head;
  std::memcpy(&head, theirs.data(), sizeof head);
  const bool same_parts =
      !call_->received.empty() || call_->parts.empty() || std::ranges::equal(call_->parts, parts);
  if (head != head_ || !same_parts)
    fail(str("rank ", r, " called ", comm::describe(head, parts),
             "; all ranks must make the same calls in the same order"));
  if (!call_->received.empty() && parts[n(rank())] != call_->received[n(r)])
    fail(str("rank ", r, " sends ", parts[n(rank())], " elements here, where ",
             call_->received[n(r)], " are expected"));
}

// Seconds left: a slow wire is not a lost peer, so they begin anew with whatever moves.
double SocketCommunicator::deadline() {
  const double now = real_clock().now();
  std::size_t moved = 0;
  each_peer([&](int r) { moved += link(r).given() + link(r).taken(); });
  if (std::exchange(moved_, moved) != moved) last_moved_ = now;
  return last_moved_ + timeout() - now;
}

void SocketCommunicator::wait() {
  const double left = deadline();
  if (left <= 0) fail(late());
  polled_.clear();
  polled_peers_.clear();
  each_peer([&](int r) {
    const Link& to = link(r);
    const int events = (to.receiving() ? POLLIN : 0) | (to.sending() ? POLLOUT : 0);
    if (events == 0) return;
    polled_.push_back({to.socket(), static_cast<short>(events), 0});
    polled_peers_.push_back(r);
  });
  alarm_.wait(polled_, left);
  if (alarm_.raised()) end();
  for (std::size_t i = 0; i < polled_.size(); ++i) {
    Peer& peer = *peers_[n(polled_peers_[i])];
    const int events = polled_[i].revents;
    peer.readable |= (events & (POLLIN | POLLHUP | POLLERR)) != 0;
    peer.writable |= (events & (POLLOUT | POLLHUP | POLLERR)) != 0;
  }
}

// By the alarm; but what came before it may tell more.
void SocketCommunicator::end() {
  each_peer([&](int r) {
    peers_[n(r)]->readable = true;
    move(r);
  });
  fail(alarm_.reason());
}

// Who is furthest behind: whoever only waits for others has brought more.
std::string SocketCommunicator::late() const {
  const auto behind = [&](int r) {
    const Link& from = link(r);
    const std::size_t pieces = from.awaited_pieces(), sending = from.sending();
    return peers_[n(r)]->checked ? 2 * pieces + sending : SIZE_MAX;
  };
  std::size_t most = 0;
  each_peer([&](int r) { most = std::max(most, behind(r)); });
  std::string text;
  for (int r = 0; r < size(); ++r)
    if (r != rank() && behind(r) == most) text += str(text.empty() ? "rank " : ", rank ", r);
  return str(text, " did not come within ", timeout(), " s");
}

std::string SocketCommunicator::lost(int peer, const LinkLost& error) {
  alarm_.hear_last_word(peer);
  return alarm_.raised() ? alarm_.reason() : str("rank ", peer, " ", error.what());
}

void SocketCommunicator::fail(const std::string& cause) { fail(nullptr, cause); }

// Broken from now on, and so are the peers: they cannot go on without this rank.
void SocketCommunicator::fail(const Message* message, const std::string& cause) {
  const std::string name = message
                               ? describe(*message)
                               : comm::describe(head_, std::span(own_head_).subspan(head_words));
  const std::string text = str(transport(), " group '", group(), "', rank ", rank(), " of ", size(),
                               ", ", name, ": ", cause);
  alarm_.raise(str("rank ", rank(), " failed: ", cause));
  if (!message) broken_ = text;
  throw WorldError(text);
}

void SocketCommunicator::abort(const std::string& reason) { alarm_.raise(reason); }

}  // namespace tutti::comm
