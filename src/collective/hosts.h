// Groups of ranks on one or several hosts: through memory, over the network, or both in levels.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/group.h"
#include "comm/communicator.h"

namespace tutti::collective {

// In this host's memory. WorldError when the peers do not come in time.
std::unique_ptr<comm::Communicator> join_memory(const GroupOptions& options);

// Over TCP; with transport auto, of hosts that have several ranks, in levels (comm/hierarchy.h).
// `hosts` of each rank, Host::id; empty: the ranks tell each other. They meet at this store under
// options.name, which is unique to the group. WorldError when the peers do not come in time.
std::unique_ptr<comm::Communicator> join_hosts(const GroupOptions& options,
                                               std::vector<std::int64_t> hosts,
                                               c10::intrusive_ptr<c10d::Store> store);

}  // namespace tutti::collective
