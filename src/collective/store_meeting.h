// How processes that have a c10d store in common (torchrun's, a file) come by a communicator in
// shared memory.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace tutti::collective {

// Where a process is: `id` is alike for processes that can share memory.
struct Host {
  std::int64_t id;
  std::string name;
};
Host this_host();

struct StoreMeeting {
  int rank = 0, size = 1;
  double timeout = 300;         // seconds, for meeting and for every operation
  std::string group = "world";  // what errors call it
  Host host = this_host();
};

// `store` is this group's alone (c10d hands out such). ConfigError, on every rank, when not all are
// on one host or are too many; WorldError when the peers do not come.
std::unique_ptr<comm::Communicator> join_by_store(c10d::Store& store, const StoreMeeting& meeting);

}  // namespace tutti::collective
