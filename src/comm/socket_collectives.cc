// The collectives that only move data.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/copy.h"
#include "comm/socket_communicator.h"

namespace tutti::comm {
namespace {

std::size_t n(int value) { return static_cast<std::size_t>(value); }

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// Where rank r's part begins, and its bytes.
struct Place {
  std::size_t begin, bytes;
};
Place place_of(std::span<const std::size_t> counts, int r, std::size_t element) {
  return {sum_of(counts.first(n(r))) * element, counts[n(r)] * element};
}

constexpr std::size_t relay_bytes = 128 << 10;  // a broadcast up to here goes straight to all

}  // namespace

void SocketCommunicator::barrier() {
  const Call call{.operation = Operation::barrier};
  begin(call);
  finish();
}

void SocketCommunicator::broadcast(void* data, std::size_t count, DType type, int root) {
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  const Call call{.operation = Operation::broadcast, .type = type, .count = count, .root = root};
  const std::size_t bytes = count * size_of(type);
  begin(call);
  if (size() > 2 && bytes > relay_bytes) {
    relay(bytes_of(data), bytes, root);
  } else if (rank() == root) {
    each_peer([&](int r) { send_to(r, data, bytes); });
  } else {
    receive_from(root, data, bytes);
  }
  finish();
}

// The root gives each of the others a share, which passes it on to the rest as it comes.
void SocketCommunicator::relay(std::byte* data, std::size_t bytes, int root) {
  const std::size_t shares = n(size() - 1);
  const auto begin_of = [&](int r) { return bytes / shares * n((r - root - 1 + size()) % size()); };
  const auto bytes_to = [&](int r) {
    const bool last = (r + 1) % size() == root;
    return last ? bytes - begin_of(r) : bytes / shares;
  };
  if (rank() == root) return each_peer([&](int r) { send_to(r, data + begin_of(r), bytes_to(r)); });
  const std::size_t mark = link(root).awaited();
  each_peer([&](int r) {
    const int share = r == root ? rank() : r;
    receive_from(r, data + begin_of(share), bytes_to(share));
  });
  std::byte* const mine = data + begin_of(rank());
  for (std::size_t passed = 0; passed < bytes_to(rank());) {
    const std::size_t next = std::min(passed + options_.chunk_bytes, bytes_to(rank()));
    drive([&] { return link(root).received() >= mark + next; });
    const std::size_t came = link(root).received() - mark;
    each_peer([&](int r) {
      if (r != root) send_to(r, mine + passed, came - passed);
    });
    passed = came;
  }
}

void SocketCommunicator::all_gather_v(const void* in, void* out,
                                      std::span<const std::size_t> counts, DType type) {
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  const Call call{.operation = Operation::all_gather,
                  .type = type,
                  .count = std::ranges::max(counts),
                  .parts = counts};
  const Place own = place_of(counts, rank(), size_of(type));
  begin(call);
  each_peer([&](int r) {
    const Place place = place_of(counts, r, size_of(type));
    send_to(r, in, own.bytes);
    receive_from(r, bytes_of(out) + place.begin, place.bytes);
  });
  drive([] { return true; });
  copy_bytes(bytes_of(out) + own.begin, in, own.bytes);
  finish();
}

void SocketCommunicator::all_to_all_v(const void* in, std::span<const std::size_t> send_counts,
                                      void* out, std::span<const std::size_t> receive_counts,
                                      DType type) {
  TUTTI_ASSERT(send_counts.size() == n(size()) && receive_counts.size() == n(size()),
               send_counts.size(), " and ", receive_counts.size(), " counts");
  const Call call{.operation = Operation::all_to_all,
                  .type = type,
                  .parts = send_counts,
                  .received = receive_counts};
  begin(call);
  each_peer([&](int r) {
    const Place to = place_of(send_counts, r, size_of(type));
    const Place from = place_of(receive_counts, r, size_of(type));
    send_to(r, bytes_of(in) + to.begin, to.bytes);
    receive_from(r, bytes_of(out) + from.begin, from.bytes);
  });
  drive([] { return true; });
  const Place own = place_of(send_counts, rank(), size_of(type));
  const Place kept = place_of(receive_counts, rank(), size_of(type));
  if (own.bytes != kept.bytes)
    fail(str("rank ", rank(), " sends ", send_counts[n(rank())], " elements here, where ",
             receive_counts[n(rank())], " are expected"));
  copy_bytes(bytes_of(out) + kept.begin, bytes_of(in) + own.begin, own.bytes);
  finish();
}

void SocketCommunicator::gather_v(const void* in, void* out, std::span<const std::size_t> counts,
                                  DType type, int root) {
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  const Call call{.operation = Operation::gather,
                  .type = type,
                  .count = std::ranges::max(counts),
                  .root = root,
                  .parts = counts};
  const Place own = place_of(counts, rank(), size_of(type));
  begin(call);
  if (rank() != root) {
    send_to(root, in, own.bytes);
    return finish();
  }
  each_peer([&](int r) {
    const Place place = place_of(counts, r, size_of(type));
    receive_from(r, bytes_of(out) + place.begin, place.bytes);
  });
  copy_bytes(bytes_of(out) + own.begin, in, own.bytes);
  finish();
}

void SocketCommunicator::scatter_v(const void* in, void* out, std::span<const std::size_t> counts,
                                   DType type, int root) {
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  const Call call{.operation = Operation::scatter,
                  .type = type,
                  .count = std::ranges::max(counts),
                  .root = root,
                  .parts = counts};
  const Place own = place_of(counts, rank(), size_of(type));
  begin(call);
  if (rank() != root) {
    receive_from(root, out, own.bytes);
    return finish();
  }
  each_peer([&](int r) {
    const Place place = place_of(counts, r, size_of(type));
    send_to(r, bytes_of(in) + place.begin, place.bytes);
  });
  drive([] { return true; });
  copy_bytes(out, bytes_of(in) + own.begin, own.bytes);
  finish();
}

}  // namespace tutti::comm
