// Gloo: libtorch's process group behind our Communicator.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "collective/group.h"
#include "comm/communicator.h"

namespace tutti::collective {

// A group that meets at this store under options.name, which is unique to it. WorldError when the
// peers do not come in time; ConfigError in a build without Gloo's headers.
std::unique_ptr<comm::Communicator> join_gloo(const GroupOptions& options,
                                              c10::intrusive_ptr<c10d::Store> store);

}  // namespace tutti::collective
