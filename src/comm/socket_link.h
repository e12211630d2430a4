// One connection of a pair of ranks: what is to go out and to come in, in order, plain or sealed.
//
// The sending half and the receiving half may be used by two threads at once. Memory that is queued
// must live until it has gone or come. LinkLost says what became of the peer's connection, as in
// "has closed its connection".
#pragma once
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/secure_channel.h"

namespace tutti::comm {

class LinkLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A descriptor that is closed with its owner; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }

 private:
  int number_;
};

// Pieces of memory in order, used from the front. Keeps its room.
class Pieces {
 public:
  void add(const void* data, std::size_t bytes);
  // The first bytes are done.
  void advance(std::size_t bytes);
  bool empty() const { return first_ == pieces_.size(); }
  iovec* front() { return pieces_.data() + first_; }
  std::size_t count() const { return pieces_.size() - first_; }

 private:
  std::vector<iovec> pieces_;
  std::size_t first_ = 0;
};

// A connected, non-blocking socket, and the keys when it is to be sealed.
struct Connection {
  Descriptor socket;
  std::unique_ptr<Keys> keys;
};

class Link {
 public:
  explicit Link(Connection connection);

  int socket() const { return socket_.get(); }

  void queue_out(const void* data, std::size_t bytes) { out_.add(data, bytes); }
  // Sends what the socket takes now.
  void push();
  bool sending() const { return !out_.empty() || sealed_begin_ < sealed_end_; }

  void queue_in(void* data, std::size_t bytes) {
    in_.add(data, bytes);
    awaited_ += bytes;
  }
  // Takes what is there now of what is queued; whether anything came.
  bool pull();
  // All bytes ever queued, and ever come.
  std::size_t awaited() const { return awaited_; }
  std::size_t received() const { return received_; }
  bool receiving() const { return received_ < awaited_; }
  std::size_t awaited_pieces() const { return in_.count(); }
  // Bytes that have passed the socket, in each direction.
  std::size_t given() const { return given_; }
  std::size_t taken() const { return taken_; }

 private:
  bool push_plain();
  bool push_sealed();
  void seal_next();
  bool pull_plain();
  bool pull_sealed();
  bool open_next();
  void deliver();
  std::size_t give(const msghdr& message);
  std::size_t take(msghdr& message);

  Descriptor socket_;
  Pieces out_, in_;
  std::size_t awaited_ = 0, received_ = 0;
  std::size_t given_ = 0, taken_ = 0;

  std::unique_ptr<Sealer> sealer_;
  std::vector<std::byte> sealed_;  // records on their way out
  std::size_t sealed_begin_ = 0, sealed_end_ = 0;

  std::unique_ptr<Opener> opener_;
  std::vector<std::byte> raw_;  // records that came, the first opened as far as text_ says
  std::size_t raw_begin_ = 0, raw_end_ = 0;
  std::span<std::byte> text_;  // opened, not yet delivered
};

}  // namespace tutti::comm
