#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "trace/profile.h"
#include "trace/window.h"

namespace tutti::trace {
namespace {

constexpr int own_thread = 0;

// Groups have threads 1, 2, ...; their messages to and from peers one more each.
int thread_of(const FlightEntry& entry) {
  if (entry.span()) return own_thread;
  const int lane = !entry.message ? 0 : std::string(entry.operation.data()) == "send" ? 1 : 2;
  return 1 + 3 * entry.group + lane;
}

std::string thread_name(const FlightLog& log, const FlightEntry& entry) {
  if (entry.span()) return "passes";
  const std::string group = log.groups[static_cast<std::size_t>(entry.group)].name.data();
  return !entry.message ? group : group + ": " + entry.operation.data();
}

Json named(const char* what, int rank, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

class Writer {
 public:
  explicit Writer(double zero) : zero_(zero) {}

  void add(const FlightLog& log, const FlightEntry& entry) {
    const int thread = thread_of(entry);
    if (threads_.insert({log.rank, thread}).second)
      put(named("thread_name", log.rank, thread, thread_name(log, entry)));
    const double end = entry.ended > 0 ? entry.ended : log.now;
    Json args = Json::object();
    if (!entry.span()) {
      args = {{"sequence", entry.sequence},
              {"bytes", entry.bytes},
              {"site", entry.site.data()},
              {"queued_us", micro(entry.started - entry.asked)}};
      if (!entry.message) args["type"] = std::string(name_of(static_cast<DType>(entry.type)));
      if (entry.peer >= 0) args["peer"] = entry.peer;
      if (entry.failed) args["failed"] = true;
      if (entry.ended == 0) args["never_ended"] = true;
    }
    put({{"ph", "X"},
         {"name", entry.operation.data()},
         {"cat", entry.span() ? "pass" : "communication"},
         {"pid", log.rank},
         {"tid", thread},
         {"ts", micro(entry.started + log.wall - zero_)},
         {"dur", micro(end - entry.started)},
         {"args", args}});
  }
  void process(int rank) { put(named("process_name", rank, 0, str("rank ", rank))); }
  std::string text() {
    return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + lines_ + "\n]}\n";
  }

 private:
  // Microseconds to the nanosecond.
  static double micro(double seconds) { return std::round(seconds * 1e9) / 1e3; }
  void put(const Json& event) {
    if (!lines_.empty()) lines_ += ",\n";
    lines_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  double zero_;
  std::string lines_;
  std::set<std::pair<int, int>> threads_;
};

}  // namespace

std::string chrome_trace(const std::vector<FlightLog>& logs, std::int64_t first,
                         std::int64_t last) {
  const bool all = first == 0 && last == 0;
  const Window window = window_of(logs, first, last);
  const auto wanted = [&](const FlightLog& log, const FlightEntry& entry) {
    return entry.started > 0 && (all || window.holds(log, entry));
  };
  double zero = 1e300;
  for (const FlightLog& log : logs)
    for (const FlightEntry& entry : log.entries)
      if (wanted(log, entry)) zero = std::min(zero, entry.started + log.wall);
  Writer writer(zero);
  for (const FlightLog& log : logs) {
    writer.process(log.rank);
    for (const FlightEntry& entry : log.entries)
      if (wanted(log, entry)) writer.add(log, entry);
  }
  return writer.text();
}

}  // namespace tutti::trace
