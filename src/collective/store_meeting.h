// c10d's stores, where ranks find each other: the job's own, and how processes that have one in
// common (torchrun's, a file) come by a communicator in shared memory.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "collective/group.h"
#include "comm/communicator.h"
#include "comm/socket_group.h"

namespace tutti::collective {

// Where a process is: `id` is alike for processes that can share memory.
struct Host {
  std::int64_t id;
  std::string name;
};
Host this_host();

// The store of a job at options.host:port; rank 0 hosts it. WorldError when that port is taken or
// rank 0 does not come in time.
c10::intrusive_ptr<c10d::Store> open_store(const GroupOptions& options);

class StoreBoard : public comm::Board {
 public:
  explicit StoreBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

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
