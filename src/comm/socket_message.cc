// Messages between two ranks: a length and the bytes. They touch nothing of a collective's state,
// so that both may run.
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "comm/socket_communicator.h"

namespace tutti::comm {

// `moves()` returns whether the message has gone or come.
template <class Moves>
void SocketCommunicator::run_message(const Message& message, short event, std::vector<pollfd>& set,
                                     Moves moves) {
  const Link& link = messages_[static_cast<std::size_t>(message.peer)]->link;
  const auto bytes = [&] { return message.to ? link.given() : link.taken(); };
  double last_moved = real_clock().now();
  std::size_t moved = bytes();
  try {
    for (;;) {
      if (alarm_.raised()) fail(&message, alarm_.reason());
      if (moves()) return;
      const double now = real_clock().now();
      if (std::exchange(moved, bytes()) != bytes()) last_moved = now;
      const double left = last_moved + timeout() - now;
      if (left <= 0)
        fail(&message, str("rank ", message.peer, " did not come within ", timeout(), " s"));
      set.assign(1, {link.socket(), event, 0});
      alarm_.wait(set, left);
    }
  } catch (const LinkLost& error) {
    fail(&message, lost(message.peer, error));
  }
}

void SocketCommunicator::send(const void* data, std::size_t bytes, int to) {
  TUTTI_ASSERT(0 <= to && to < size() && to != rank(), "send to ", to);
  const Message message{true, to, bytes};
  Messages& messages = *messages_[static_cast<std::size_t>(to)];
  const std::uint64_t length = bytes;
  if (!alarm_.raised()) {
    messages.link.queue_out(&length, sizeof length);
    messages.link.queue_out(data, bytes);
  }
  run_message(message, POLLOUT, messages.sends, [&] {
    messages.link.push();
    return !messages.link.sending();
  });
}

void SocketCommunicator::recv(void* data, std::size_t bytes, int from) {
  TUTTI_ASSERT(0 <= from && from < size() && from != rank(), "recv from ", from);
  const Message message{false, from, bytes};
  Messages& messages = *messages_[static_cast<std::size_t>(from)];
  std::uint64_t length = bytes;
  std::size_t length_end = 0;
  if (!alarm_.raised()) {
    messages.link.queue_in(&length, sizeof length);
    length_end = messages.link.awaited();
    messages.link.queue_in(data, bytes);
  }
  run_message(message, POLLIN, messages.receives, [&] {
    messages.link.pull();
    if (messages.link.received() >= length_end && length != bytes)
      fail(&message, str("rank ", from, " sends ", length, " bytes"));
    return !messages.link.receiving();
  });
}

std::string SocketCommunicator::describe(const Message& message) {
  return str(message.to ? "send to" : "recv from", " rank ", message.peer, " (", message.bytes,
             " bytes)");
}

}  // namespace tutti::comm
