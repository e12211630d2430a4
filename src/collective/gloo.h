// Gloo, for ranks on several hosts: libtorch's process group behind our Communicator.
#pragma once
#include <memory>

#include "collective/group.h"
#include "comm/communicator.h"

namespace tutti::collective {

// Rank 0 hosts the store at options.host:port. WorldError when that port is taken or the peers do
// not come in time; ConfigError in a build without Gloo's headers.
std::unique_ptr<comm::Communicator> join_gloo(const GroupOptions& options);

}  // namespace tutti::collective
