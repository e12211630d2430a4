#include "collective/hosts.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "collective/store_meeting.h"
#include "comm/hierarchy.h"
#include "comm/memory_group.h"
#include "comm/socket_group.h"

namespace tutti::collective {
namespace {

using CommPtr = std::unique_ptr<comm::Communicator>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

CommPtr join_network(const GroupOptions& options, const StorePtr& store) {
  StoreBoard board(store);
  comm::SocketOptions sockets;
  sockets.group = options.group;
  sockets.timeout = options.timeout;
  sockets.address = options.address;
  sockets.secret = options.secret;
  sockets.encrypt = options.encrypt;
  return comm::join_tcp(board, options.name, options.rank, options.size, sockets);
}

std::vector<std::int64_t> tell_hosts(const GroupOptions& options, const StorePtr& store) {
  StoreBoard board(store);
  const auto key = [&](int rank) { return str(options.name, "/host/", rank); };
  board.set(key(options.rank), str(*options.here));
  std::vector<std::int64_t> hosts;
  const double deadline = real_clock().now() + options.timeout;
  for (int r = 0; r < options.size; ++r) {
    const std::string text = board.get(key(r), std::max(0.001, deadline - real_clock().now()));
    std::int64_t host = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), host);
    if (error != std::errc() || end != text.data() + text.size())
      throw WorldError(str("group '", options.group, "', rank ", options.rank, " of ", options.size,
                           ": rank ", r, " does not say which host it is on: the store at ",
                           options.host, ":", options.port, " was changed by another"));
    hosts.push_back(host);
  }
  return hosts;
}

// The group of `size` of the ranks in which this one is `rank`, called after what they have in
// common.
GroupOptions part_of(const GroupOptions& options, int rank, int size, const std::string& what) {
  GroupOptions part = options;
  part.rank = rank;
  part.size = size;
  part.group = str(options.group, ", ", what);
  part.name = str(options.name, "/", what);
  return part;
}

CommPtr join_levels(const GroupOptions& options, const comm::HostSizes& hosts,
                    const StorePtr& store) {
  int host = 0, first = 0;
  while (first + hosts[static_cast<std::size_t>(host)] <= options.rank)
    first += hosts[static_cast<std::size_t>(host++)];
  const int local = options.rank - first, ranks = hosts[static_cast<std::size_t>(host)];
  comm::Levels levels;
  levels.all = join_network(options, store);
  levels.local =
      join_memory(part_of(options, local, ranks, str("ranks ", first, " to ", first + ranks - 1)));
  if (local < comm::lanes_of(hosts))
    levels.across = join_network(
        part_of(options, host, static_cast<int>(hosts.size()), str("lane ", local)), store);
  return comm::make_hierarchy(std::move(levels), hosts);
}

}  // namespace

CommPtr join_memory(const GroupOptions& options) {
  comm::MemoryOptions memory;
  memory.group = options.group;
  memory.timeout = options.timeout;
  return comm::join_shm(options.name, options.rank, options.size, memory);
}

CommPtr join_hosts(const GroupOptions& options, std::vector<std::int64_t> ids, StorePtr store) {
  try {
    if (options.transport != "auto") return join_network(options, store);
    if (ids.empty()) ids = tell_hosts(options, store);
    const comm::HostSizes hosts = comm::hosts_of(ids);
    const bool several = !hosts.empty() && std::ranges::max(hosts) > 1 &&
                         std::ranges::max(hosts) <= comm::max_memory_ranks;
    if (!several) return join_network(options, store);
    if (hosts.size() == 1) return join_memory(options);
    return join_levels(options, hosts, store);
  } catch (const c10::Error& error) {
    throw WorldError(str("group '", options.group, "', rank ", options.rank, " of ", options.size,
                         ": the ranks did not meet in the store at ", options.host, ":",
                         options.port, ": ", error.what_without_backtrace()));
  }
}

}  // namespace tutti::collective
