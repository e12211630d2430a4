// Ranks that speak over TCP: processes of any hosts, each pair over connections of its own.
//
// Everybody sends straight to whom it concerns, over all links at once. Sums are cut in a part a
// rank; parts travel in chunks, so that the sum of one chunk and the travel of the next overlap.
// Small sums take one round: all send all to all, and each rank sums for itself. Every call begins
// with its name, so that ranks that call different things are told so.
//
// The ranks meet by a board: each listens and writes there where. With a secret, a connection
// counts only once both sides have proved that they know it; who cannot is sent away and harms
// nobody. With `encrypt`, all bytes are sealed (AES-256-GCM). docs/formats/wire.md has the bytes.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace tutti::comm {

struct SocketOptions {
  std::string group = "world";
  double timeout = 300;  // seconds, also for meeting
  // By which the other hosts reach this one: a number of IPv4 or IPv6, or a name.
  std::string address = "127.0.0.1";
  // Known to the ranks alone, 16 random bytes or more; empty: whoever reaches the port is believed.
  std::string secret;
  bool encrypt = false;
  // Alike on all ranks.
  std::size_t chunk_bytes = 1 << 20;   // of all ranks, summed while the next travel; 128 or more
  std::size_t eager_bytes = 64 << 10;  // of all ranks, up to which a sum takes one round
};

// A store of texts that all ranks reach. Calls come from the thread that joins.
struct Board {
  virtual ~Board() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there, `timeout` seconds at most; then throws what is a std::exception.
  virtual std::string get(const std::string& key, double timeout) = 0;
};

// `name` tells jobs and groups apart: the same on all ranks, fresh on this board for every group.
// WorldError names the ranks that do not come in time, and why a connection was refused last.
std::unique_ptr<Communicator> join_tcp(Board& board, const std::string& name, int rank, int size,
                                       const SocketOptions& options = {});

}  // namespace tutti::comm
