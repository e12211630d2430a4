// Collectives of ranks on several hosts, in levels: within a host through its memory, between hosts
// over the network, where each number crosses once for a host and not once for a rank (Thakur,
// Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005; the
// two levels are those of Cho et al., "BlueConnect", 2019).
//
// A buffer is cut in as many slices as there are lanes: the fewest ranks that a host has. The i-th
// rank of each host is in lane i, carries slice i, and all lanes use the network at once.
//
//   all-reduce of S bytes, H hosts of L ranks          a host sends over the network
//     here: reduce-scatter in the host, all-reduce in    2 (H - 1) / H S
//     the lane, all-gather in the host
//     flat: each rank to all others                      2 (H - 1) / H S L
//
// The i-th micro-batches of a host lie side by side in the tree of sums, so that a host adds whole
// nodes of it and the hosts go on from there: the bits are those of flat sums (promise 3). What has
// no such shape goes flat, with the same results: averages and products, sums of 16-bit floats
// (which are rounded once), gather and scatter.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace tutti::comm {

// Ranks of each host: consecutive from host to host and within, at least one on each.
using HostSizes = std::vector<int>;

// The ranks' hosts in order, if those of each host are neighbours; empty if they are not.
HostSizes hosts_of(const std::vector<std::int64_t>& host_of_rank);

struct Levels {
  std::unique_ptr<Communicator> all;     // every rank
  std::unique_ptr<Communicator> local;   // this host's, in order
  std::unique_ptr<Communicator> across;  // this lane's, host by host; null: not in a lane
};
// In how many lanes the ranks of these hosts go.
int lanes_of(const HostSizes& hosts);

// `hosts` must be alike on all ranks. Named and numbered as `all`.
std::unique_ptr<Communicator> make_hierarchy(Levels levels, const HostSizes& hosts);

}  // namespace tutti::comm
