// Which of the records belong to some steps of a run.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/flight_recorder.h"

namespace tutti::trace {

// The number of a span "step 12"; 0 of any other.
inline std::int64_t step_of(const comm::FlightEntry& entry) {
  const std::string name = entry.operation.data();
  return entry.span() && name.starts_with("step ") ? std::atoll(name.c_str() + 5) : 0;
}

struct Window {
  std::int64_t first = 1, last = 0;  // steps; none if last < first
  std::map<int, std::pair<double, double>>
      times;  // of each rank: the first one's start, the last one's end

  std::int64_t steps() const { return std::max<std::int64_t>(0, last - first + 1); }
  bool holds(const comm::FlightLog& log, const comm::FlightEntry& entry) const {
    const auto found = times.find(log.rank);
    return found != times.end() && entry.started >= found->second.first &&
           (entry.ended == 0 || entry.ended <= found->second.second);
  }
};

// Steps that every log has whole, at most [first, last]; 0: as far as they go. A log's oldest step
// may have lost its beginning and is left out.
inline Window window_of(const std::vector<comm::FlightLog>& logs, std::int64_t first,
                        std::int64_t last) {
  Window window{std::max<std::int64_t>(1, first), last > 0 ? last : INT64_MAX, {}};
  for (const comm::FlightLog& log : logs) {
    std::int64_t from = INT64_MAX, to = 0;
    const bool lost = !log.entries.empty() && log.entries.front().order > 1;
    bool skip = lost;
    for (const comm::FlightEntry& entry : log.entries)
      if (const std::int64_t step = step_of(entry); step > 0) {
        if (!std::exchange(skip, false)) from = std::min(from, step);
        to = std::max(to, step);
      }
    window.first = std::max(window.first, from);
    window.last = std::min(window.last, to);
  }
  if (logs.empty() || window.last < window.first) window.last = window.first - 1;
  for (const comm::FlightLog& log : logs)
    for (const comm::FlightEntry& entry : log.entries) {
      const std::int64_t step = step_of(entry);
      if (step < window.first || step > window.last || step == 0) continue;
      auto [at, fresh] = window.times.try_emplace(log.rank, entry.started, entry.ended);
      at->second = {std::min(at->second.first, entry.started),
                    std::max(at->second.second, entry.ended)};
    }
  return window;
}

// "data (ranks 0, 1)" -> "data".
inline std::string short_name(const std::string& group) {
  return group.substr(0, group.find(" ("));
}

}  // namespace tutti::trace
