// What a run's operations cost, from the newest that its ranks wrote down: by operation, by link,
// by rank. Pure.
//
// An operation of a group begins to move data when the last member has started it. What a member
// waits before is the work of the late, not of the wire:
//
//   waited = max over members of started - own started      moved = own ended - max of started
//
// Bandwidth is the operation's traffic a rank over the time moved. Traffic of n ranks and a largest
// buffer of B bytes (of all_to_all_v the larger of the two): all_reduce, tree_all_reduce 2 B
// (n-1)/n; reduce_scatter, all_gather, all_to_all, gather_v, scatter_v B (n-1)/n; broadcast,
// reduce, messages B (the bounds of Chan et al., "Collective communication: theory, practice, and
// experience", 2007).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/cost_table.h"
#include "comm/flight_recorder.h"
#include "trace/waits.h"

namespace tutti::trace {

// All calls of one operation by a group, over its members and the steps of the window.
struct OperationCost {
  std::string group, operation;
  std::int64_t calls = 0;        // of one member
  double bytes = 0;              // largest buffer, mean of a call
  double waited = 0, moved = 0;  // seconds a step, mean of the members
  double bandwidth = 0;          // bytes a second a rank; 0: nothing moved
  double attainable = 0;         // what the machine was measured to give for it; 0: not known
  int ranks = 1;                 // of the group
};

struct RankCost {
  int rank = 0;
  double step = 0;  // seconds, mean of the steps
  double data = 0, forward = 0, backward = 0, reduce = 0, optimizer = 0;  // as engines call them
  double busy = 0;       // of a step: some operation was under way
  double made_wait = 0;  // seconds a step that the fastest member of its groups waited for it
};

struct Profile {
  std::int64_t steps = 0;  // whole ones that all ranks have; from `first`
  std::int64_t first = 0;
  std::vector<RankCost> ranks;
  std::vector<OperationCost> operations;        // dearest first
  std::map<std::pair<int, int>, double> links;  // (from, to): bytes a step
  std::string straggler;                        // a sentence, or ""
};

// Of steps [first, last] (counted from 1; 0: as far as the records go).
Profile profile_of(const std::vector<FlightLog>& logs, std::int64_t first = 0,
                   std::int64_t last = 0);

// Fills in what is attainable: of a call of the mean size, by these costs.
void compare(Profile& profile, const comm::CostTable& costs);

// Seconds a step, mean of the ranks, in which operations moved data, hidden or not, and in which
// ranks waited for those that came later.
struct Shares {
  double moved = 0, waited = 0;  // of a step
};
Shares shares_of(const Profile& profile);

std::string profile_text(const Profile& profile);
std::string profile_html(const Profile& profile,
                         const std::string& run);  // whole, without other files

// The Trace Event Format that chrome://tracing and Perfetto read: a process a rank, a thread for
// its passes and one for each group and direction of messages.
std::string chrome_trace(const std::vector<FlightLog>& logs, std::int64_t first = 0,
                         std::int64_t last = 0);

}  // namespace tutti::trace
