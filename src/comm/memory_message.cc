// Messages between two ranks. They touch nothing of a collective's state, so that both may run.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/copy.h"
#include "comm/memory_communicator.h"

namespace tutti::comm {
namespace {

// A message is a header and, where the receiver cannot read it in place, chunks. A short one is
// always sent in chunks, so that its sender need not wait.
struct Header {
  std::uint64_t bytes, location;
  bool in_place;
};

}  // namespace

void MemoryCommunicator::begin(const Message& message) {
  if (segment_->group().aborted.load() == 2) fail(&message, segment_->group().reason);
}

void MemoryCommunicator::send(const void* data, std::size_t bytes, int to) {
  TUTTI_ASSERT(0 <= to && to < size() && to != rank(), "send to ", to);
  const Message message{true, to, bytes};
  begin(message);
  RankBlock& mine = own();
  std::uint32_t sent = mine.sent[to].load();
  auto& received = segment_->rank(to).received[rank()];
  const auto put = [&](const void* from, std::size_t size) {
    wait_for(&message, to, received, sent - 1);  // one of the two chunks is free
    copy_bytes(segment_->message(rank(), to, sent), from, size);
    publish(mine, mine.sent[to], ++sent);
  };
  const bool in_place = bytes > Segment::message_chunk && visible(data, bytes);
  const Header header{bytes, segment_->to_location(data), in_place};
  put(&header, sizeof header);
  if (in_place) return wait_for(&message, to, received, sent);
  for (std::size_t first = 0; first < bytes; first += Segment::message_chunk)
    put(static_cast<const std::byte*>(data) + first,
        std::min(bytes - first, Segment::message_chunk));
}

void MemoryCommunicator::recv(void* data, std::size_t bytes, int from) {
  TUTTI_ASSERT(0 <= from && from < size() && from != rank(), "recv from ", from);
  const Message message{false, from, bytes};
  begin(message);
  RankBlock& mine = own();
  std::uint32_t received = mine.received[from].load();
  auto& sent = segment_->rank(from).sent[rank()];
  const auto arrived = [&] {
    wait_for(&message, from, sent, received + 1);
    return segment_->message(from, rank(), received);
  };
  const auto release = [&] { publish(mine, mine.received[from], ++received); };
  Header header;
  std::memcpy(&header, arrived(), sizeof header);
  if (header.bytes != bytes) fail(&message, str("rank ", from, " sends ", header.bytes, " bytes"));
  auto* to = static_cast<std::byte*>(data);
  if (header.in_place) copy_bytes(to, segment_->from_location(header.location), bytes);
  release();
  if (header.in_place) return;
  for (std::size_t first = 0; first < bytes; first += Segment::message_chunk, release())
    copy_bytes(to + first, arrived(), std::min(bytes - first, Segment::message_chunk));
}

std::string MemoryCommunicator::describe(const Message& message) {
  return str(message.to ? "send to" : "recv from", " rank ", message.peer, " (", message.bytes,
             " bytes)");
}

}  // namespace tutti::comm
