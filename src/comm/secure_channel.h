// What makes a connection trusted: a handshake that proves a common secret, and sealed records.
// Pure: bytes in, bytes out; no sockets, no clock. docs/formats/wire.md describes both.
//
// Threads: a Handshake has one user; a Sealer and an Opener one each, which may be two threads.
// Failure: bytes that do not fit throw Refused; the object is of no use afterwards.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti::comm {

class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Key = std::array<std::uint8_t, 32>;
using ByteView = std::span<const std::byte>;

Key sha256(std::string_view text);

// The first message of each side. All but `from`, `to`, `lane` and `key` must be alike.
struct Hello {
  char magic[8];
  std::uint32_t version, encrypt, size, lane, from, to;
  std::uint64_t chunk_bytes, eager_bytes;
  Key group;  // SHA-256 of the group's name
  Key key;    // this side's of X25519, made for this connection
};
static_assert(sizeof(Hello) == 112);

// Both directions' keys of a connection, as this side uses them.
struct Keys {
  Key send, receive;
};

// One side of a handshake:
//   connector -> listener   Hello
//   listener -> connector   Hello, proof
//   connector -> listener   proof
//   listener -> connector   welcome
class Handshake {
 public:
  // `mine` without magic, version and key. The connector says from, to and lane; the listener only
  // `from`, itself.
  Handshake(const Hello& mine, std::string_view secret, bool connects);
  ~Handshake();
  Handshake(Handshake&&) noexcept;
  Handshake& operator=(Handshake&&) noexcept;

  // What the connector says first.
  std::string opening() const;
  // The bytes of the message that is awaited; 0: the handshake is over.
  std::size_t wants() const;
  // Takes that message; returns the answer, "" for none.
  std::string answer(std::string_view message);
  // Once the peer has proved itself.
  const Hello& peer() const;
  Keys keys() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Records of up to `most` bytes of text: [length u32][sealed text][tag 16 bytes], AES-256-GCM.
struct Record {
  static constexpr std::size_t most = 64 << 10, head = 4, tag = 16;
  static constexpr std::size_t longest = head + most + tag;
};

class Sealer {
 public:
  explicit Sealer(const Key& key);
  ~Sealer();
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;
  // One record of the pieces, at most Record::most bytes together, into `to`; its length.
  std::size_t seal(std::span<const ByteView> pieces, std::byte* to);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Opener {
 public:
  explicit Opener(const Key& key);
  ~Opener();
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;
  // Bytes of the whole record that begins with these Record::head bytes.
  static std::size_t length(const std::byte* record);
  // Opens a whole record where it lies; its text.
  std::span<std::byte> open(std::span<std::byte> record);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::comm
