// Who waits for whom in a job that hangs or has died, from what its ranks wrote down last
// (comm/flight_recorder.h). Pure: the logs in, findings out.
//
// A rank waits in an operation that it has started and not ended. It waits for those members of the
// group that have not asked for the operation of the same number (of a message: for the peer's
// counterpart). Ranks that others wait for and that wait for nobody are to blame; if all wait, they
// wait in a circle.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"
#include "comm/flight_recorder.h"

namespace tutti::trace {

using comm::FlightEntry;
using comm::FlightGroup;
using comm::FlightLog;

// A rank in an operation whose peers have not come.
struct Wait {
  int rank = 0;
  std::string group;
  FlightEntry entry;
  double seconds = 0;         // so far
  std::vector<int> absent;    // ranks of the job
  std::vector<int> broken;    // ranks of the job that had given up before this began
  std::vector<int> unknown;   // places in the group whose rank left no file
  std::string contradiction;  // what a peer called in its place; "": nothing
};

struct Waits {
  std::vector<Wait> waits;
  std::vector<int> to_blame;    // ranks of the job
  std::vector<int> unrecorded;  // ranks of the job whose files are not here, or are damaged
  bool circle = false;
  std::string text;  // every rank, then the verdict
  bool well = true;  // nobody waits long, nobody is gone, nothing contradicts, all left a record
};

// Waits shorter than `patience` seconds are a job's daily life.
Waits find_waits(const std::vector<FlightLog>& logs, double patience = 5);

// The logs of a run's folder, by rank. ConfigError if it has none.
std::vector<FlightLog> read_flights(const fs::path& run);

// "all_reduce #17 (f32, 4.0 MiB)".
std::string describe(const FlightEntry& entry);

}  // namespace tutti::trace
