#include "comm/socket_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/error.h"

namespace tutti::comm {
namespace {

constexpr std::size_t most_pieces = 64;  // in one call of the kernel
constexpr std::size_t room = 4 * Record::longest;

LinkLost lost() { return LinkLost(str("has lost its connection (", errno_text(), ")")); }

LinkLost closed() { return LinkLost("has closed its connection"); }

std::size_t bytes_of(const msghdr& message) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) bytes += message.msg_iov[i].iov_len;
  return bytes;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

void Pieces::add(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  if (empty()) {
    pieces_.clear();
    first_ = 0;
  }
  pieces_.push_back({const_cast<void*>(data), bytes});
}

void Pieces::advance(std::size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces_[first_];
    const std::size_t used = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + used;
    piece.iov_len -= used;
    bytes -= used;
    if (piece.iov_len == 0) ++first_;
  }
}

Link::Link(Connection connection) : socket_(std::move(connection.socket)) {
  if (!connection.keys) return;
  sealer_ = std::make_unique<Sealer>(connection.keys->send);
  opener_ = std::make_unique<Opener>(connection.keys->receive);
  sealed_.resize(room);
  raw_.resize(room);
}

void Link::push() {
  while (sending() && (sealer_ ? push_sealed() : push_plain())) {
  }
}

std::size_t Link::give(const msghdr& message) {
  const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && !would_block()) throw lost();
  const std::size_t bytes = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  given_ += bytes;
  return bytes;
}

// Whether there is reason to try again at once.
bool Link::push_plain() {
  msghdr message{};
  message.msg_iov = out_.front();
  message.msg_iovlen = std::min(out_.count(), most_pieces);
  const std::size_t offered = bytes_of(message), sent = give(message);
  out_.advance(sent);
  return sent == offered;
}

bool Link::push_sealed() {
  if (sealed_begin_ == sealed_end_) {
    sealed_begin_ = sealed_end_ = 0;
    while (!out_.empty() && sealed_end_ + Record::longest <= sealed_.size()) seal_next();
  }
  iovec piece{sealed_.data() + sealed_begin_, sealed_end_ - sealed_begin_};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const std::size_t sent = give(message);
  sealed_begin_ += sent;
  return sealed_begin_ == sealed_end_;
}

void Link::seal_next() {
  std::array<ByteView, most_pieces> pieces;
  std::size_t used = 0, bytes = 0;
  for (; used < std::min(out_.count(), most_pieces) && bytes < Record::most; ++used) {
    const iovec& piece = out_.front()[used];
    const std::size_t size = std::min(piece.iov_len, Record::most - bytes);
    pieces[used] = {static_cast<const std::byte*>(piece.iov_base), size};
    bytes += size;
  }
  sealed_end_ += sealer_->seal({pieces.data(), used}, sealed_.data() + sealed_end_);
  out_.advance(bytes);
}

bool Link::pull() {
  const std::size_t before = received_;
  while (receiving() && (opener_ ? pull_sealed() : pull_plain())) {
  }
  return received_ > before;
}

bool Link::pull_plain() {
  msghdr message{};
  message.msg_iov = in_.front();
  message.msg_iovlen = std::min(in_.count(), most_pieces);
  const std::size_t wanted = bytes_of(message), got = take(message);
  in_.advance(got);
  received_ += got;
  return got == wanted;
}

std::size_t Link::take(msghdr& message) {
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got == 0) throw closed();
  if (got < 0 && !would_block()) throw lost();
  const std::size_t bytes = got < 0 ? 0 : static_cast<std::size_t>(got);
  taken_ += bytes;
  return bytes;
}

bool Link::pull_sealed() {
  if (!text_.empty() || open_next()) {
    deliver();
    return true;
  }
  std::memmove(raw_.data(), raw_.data() + raw_begin_, raw_end_ - raw_begin_);
  raw_end_ -= std::exchange(raw_begin_, 0);
  iovec place{raw_.data() + raw_end_, raw_.size() - raw_end_};
  msghdr message{};
  message.msg_iov = &place;
  message.msg_iovlen = 1;
  const std::size_t got = take(message);
  raw_end_ += got;
  return got > 0;
}

// Whether a whole record was there; its text is then in text_.
bool Link::open_next() {
  const std::size_t there = raw_end_ - raw_begin_;
  if (there < Record::head) return false;
  try {
    const std::size_t length = Opener::length(raw_.data() + raw_begin_);
    if (there < length) return false;
    text_ = opener_->open({raw_.data() + raw_begin_, length});
    raw_begin_ += length;
  } catch (const Refused& refused) {
    throw LinkLost(str("sent what was changed on the way: ", refused.what()));
  }
  return true;
}

void Link::deliver() {
  while (!text_.empty() && receiving()) {
    const iovec& place = *in_.front();
    const std::size_t size = std::min(place.iov_len, text_.size());
    std::memcpy(place.iov_base, text_.data(), size);
    text_ = text_.subspan(size);
    in_.advance(size);
    received_ += size;
  }
}

}  // namespace tutti::comm
