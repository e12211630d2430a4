#include "trace/waits.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "events/run_folder.h"

namespace tutti::trace {
namespace {

using Process = FlightLog::Process;

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

// Whether the operation's buffers are alike on all ranks.
bool same_bytes_everywhere(const FlightEntry& entry) {
  return std::string(entry.operation.data()) != "all_to_all_v";
}

bool same_call(const FlightEntry& a, const FlightEntry& b) {
  return a.operation == b.operation && a.type == b.type && (a.message || a.peer == b.peer) &&
         (!same_bytes_everywhere(a) || a.bytes == b.bytes);
}

class Finder {
 public:
  Finder(const std::vector<FlightLog>& logs, double patience) : logs_(logs), patience_(patience) {
    for (std::size_t i = 0; i < logs.size(); ++i)
      for (const FlightGroup& group : logs[i].groups) members_[group.key][group.rank] = i;
  }

  Waits run() {
    for (const FlightLog& log : logs_) look_at(log);
    blame();
    tell();
    return std::move(found_);
  }

 private:
  // As far as can be seen from here.
  static bool runs(const FlightLog& log) {
    return log.state == Process::runs || log.state == Process::elsewhere;
  }

  static bool over(const FlightLog& log) {
    return log.state == Process::closed || log.state == Process::failed;
  }

  // What has not ended, and what failed first: what failed later does so because of it.
  void look_at(const FlightLog& log) {
    bool failed = false;
    for (const FlightEntry& entry : log.entries) {
      const bool under_way = entry.ended == 0 && runs(log);
      if (entry.span() || entry.started == 0 || !(under_way || entry.failed)) continue;
      if (entry.failed && std::exchange(failed, true)) continue;
      const FlightGroup& group = log.groups[static_cast<std::size_t>(entry.group)];
      const double until = entry.ended > 0 ? entry.ended : log.now;
      Wait wait{log.rank, group.name.data(), entry, until - entry.started, {}, {}, {}, {}};
      began_ = entry.started + log.wall;
      until_ = until + log.wall;
      if (entry.message)
        look_for_peer(group, wait);
      else
        for (int place = 0; place < group.size; ++place)
          if (place != group.rank) look_for(group, place, wait);
      if (entry.failed || wait.seconds >= patience_ || !wait.contradiction.empty())
        found_.waits.push_back(wait);
    }
  }

  const FlightLog* member(const FlightGroup& group, int place) const {
    const auto& places = members_.at(group.key);
    const auto found = places.find(place);
    return found == places.end() ? nullptr : &logs_[found->second];
  }

  // Whether `log` has asked for what `same` tells; what its ring has lost came before.
  template <class Same>
  static const FlightEntry* find(const FlightLog& log, std::uint64_t key, Same same) {
    for (const FlightEntry& entry : log.entries)
      if (!entry.span() && log.groups[static_cast<std::size_t>(entry.group)].key == key &&
          same(entry))
        return &entry;
    return nullptr;
  }

  // A process that does not run may have asked, and will not come all the same; and one may come
  // when the others have given up. One that was stopped in the middle goes on then: it ends what
  // nobody else did, or notices late, where the others notice at once.
  bool comes(const FlightLog& log, const FlightEntry* theirs, const Wait& wait) const {
    constexpr double at_once = 1;  // seconds
    if (!theirs || theirs->started + log.wall > until_) return false;
    if (wait.entry.failed && theirs->sequence == wait.entry.sequence &&
        theirs->ended + log.wall > until_ + (theirs->failed ? at_once : 0))
      return false;
    return runs(log) || over(log) || theirs->ended > 0 || theirs->sequence > wait.entry.sequence;
  }

  void miss(const FlightLog& log, Wait& wait) const {
    const bool broken = std::ranges::any_of(log.entries, [&](const FlightEntry& entry) {
      return entry.failed && entry.ended + log.wall < began_;
    });
    (broken ? wait.broken : wait.absent).push_back(log.rank);
  }

  void look_for(const FlightGroup& group, int place, Wait& wait) const {
    const FlightLog* log = member(group, place);
    if (!log) return wait.unknown.push_back(place);
    const FlightEntry* theirs = find(*log, group.key, [&](const FlightEntry& e) {
      return !e.message && e.sequence >= wait.entry.sequence;
    });
    if (!comes(*log, theirs, wait))
      miss(*log, wait);
    else if (theirs->sequence == wait.entry.sequence && !same_call(*theirs, wait.entry))
      wait.contradiction = str("rank ", log->rank, " called ", describe(*theirs), " at ",
                               theirs->site.data(), " in its place");
  }

  void look_for_peer(const FlightGroup& group, Wait& wait) const {
    const FlightLog* log = member(group, wait.entry.peer);
    if (!log) return wait.unknown.push_back(wait.entry.peer);
    const std::string other = std::string(wait.entry.operation.data()) == "recv" ? "send" : "recv";
    const FlightEntry* theirs = find(*log, group.key, [&](const FlightEntry& e) {
      return e.message && e.peer == group.rank && other == e.operation.data() &&
             e.sequence >= wait.entry.sequence;
    });
    if (!comes(*log, theirs, wait))
      miss(*log, wait);
    else if (theirs->sequence == wait.entry.sequence && theirs->bytes != wait.entry.bytes)
      wait.contradiction =
          str("rank ", log->rank, " called ", describe(*theirs), " at ", theirs->site.data());
  }

  void blame() {
    std::set<int> waiting, awaited;
    for (const Wait& wait : found_.waits) {
      if (!wait.absent.empty()) waiting.insert(wait.rank);
      awaited.insert(wait.absent.begin(), wait.absent.end());
    }
    for (const int rank : awaited)
      if (!waiting.contains(rank) || gone(rank)) found_.to_blame.push_back(rank);
    found_.circle = found_.to_blame.empty() && !awaited.empty();
    for (const FlightLog& log : logs_)
      if (gone(log.rank) && !awaited.contains(log.rank)) found_.to_blame.push_back(log.rank);
    std::ranges::sort(found_.to_blame);
    const bool failed = std::ranges::any_of(
        logs_, [](const FlightLog& log) { return log.state == Process::failed; });
    for (int rank = 0; !logs_.empty() && rank < logs_[0].world; ++rank)
      if (!log_of(rank)) found_.unrecorded.push_back(rank);
    found_.well =
        found_.waits.empty() && found_.to_blame.empty() && !failed && found_.unrecorded.empty();
  }

  const FlightLog* log_of(int rank) const {
    const auto found = std::ranges::find(logs_, rank, &FlightLog::rank);
    return found == logs_.end() ? nullptr : &*found;
  }

  bool gone(int rank) const {
    const FlightLog* log = log_of(rank);
    return log && (log->state == Process::ended || log->state == Process::stopped);
  }

  void tell() {
    for (const FlightLog& log : logs_) tell_rank(log);
    for (const Wait& wait : found_.waits)
      if (!wait.contradiction.empty())
        found_.text += str("rank ", wait.rank, " called ", wait.group, ": ", describe(wait.entry),
                           " at ", wait.entry.site.data(), ", but ", wait.contradiction,
                           ": all ranks must make the same calls in the same order\n");
    found_.text += verdict() + "\n";
  }

  static std::string state_text(const FlightLog& log) {
    switch (log.state) {
      case Process::runs:
        return "runs";
      case Process::stopped:
        return "is STOPPED";
      case Process::ended:
        return "has ENDED without a word";
      case Process::closed:
        return "has ended in order";
      case Process::failed:
        return "has ended with an error";
      case Process::elsewhere:
        return "is on " + log.host + ", not seen from here";
    }
    return "";
  }

  void tell_rank(const FlightLog& log) {
    std::string& text = found_.text;
    text += str("rank ", log.rank, " (process ", log.process, ") ", state_text(log), "\n");
    bool waits = false;
    for (const Wait& wait : found_.waits) {
      if (wait.rank != log.rank) continue;
      waits = true;
      text += str(
          wait.entry.failed ? "  gave up after " : "  waits ", human_seconds(wait.seconds), " in ",
          wait.group, ": ", describe(wait.entry), ", asked for at ", wait.entry.site.data(),
          wait.absent.empty() ? "" : "; " + ranks_text(wait.absent) + " did not come",
          wait.broken.empty() ? "" : "; " + ranks_text(wait.broken) + " had given up before",
          wait.unknown.empty() ? std::string()
                               : str("; ", wait.unknown.size(), " members left no record"),
          "\n");
    }
    if (waits || log.entries.empty()) return;
    const auto last = std::ranges::max_element(log.entries, {}, [](const FlightEntry& entry) {
      return std::pair(std::max(entry.ended, entry.started), entry.order);
    });
    const double then = std::max(last->ended, last->started);
    text +=
        str("  last: ",
            last->span()
                ? ""
                : std::string(log.groups[static_cast<std::size_t>(last->group)].name.data()) + ": ",
            describe(*last),
            last->failed      ? ", FAILED"
            : last->ended > 0 ? ", ended"
                              : ", begun",
            " ", human_seconds(std::max(0.0, log.now - then)), " ago\n");
  }

  std::string verdict() const {
    if (found_.well) return "nobody waits: the job is well, or has ended well";
    if (found_.circle)
      return "the ranks wait for each other in a circle: look at the order of their calls";
    std::string text;
    for (const int rank : found_.to_blame) {
      const FlightLog* log = log_of(rank);
      text += str(text.empty() ? "" : "; ", "look at rank ", rank, ": it ",
                  !log ? "left no record" : state_text(*log));
      if (log && (log->state == Process::runs || over(*log))) text += ", and has not come";
      if (log && log->state == Process::stopped)
        text += str(" (kill -CONT ", log->process, " lets it go on)");
    }
    const bool failed = std::ranges::any_of(
        logs_, [](const FlightLog& log) { return log.state == Process::failed; });
    if (failed) text += str(text.empty() ? "" : "; ", "the ranks' own words are in logs/");
    if (!found_.unrecorded.empty())
      text += str(text.empty() ? found_.waits.empty() ? "nobody else waits; " : "" : "; ",
                  ranks_text(found_.unrecorded), " left no record that can be read here");
    return text.empty() ? "all have come: the transport itself is slow or broken" : text;
  }

  const std::vector<FlightLog>& logs_;
  double patience_;
  double began_ = 0, until_ = 0;  // of the wait that is looked at, in seconds since 1970
  std::map<std::uint64_t, std::map<int, std::size_t>> members_;  // key -> place -> index of a log
  Waits found_;
};

}  // namespace

std::string describe(const FlightEntry& entry) {
  if (entry.span()) return entry.operation.data();
  std::string text = str(entry.operation.data(), " #", entry.sequence);
  if (entry.message)
    text += str(std::string(entry.operation.data()) == "send" ? " to " : " from ", entry.peer);
  if (entry.bytes > 0)
    text += str(" (", entry.message ? "" : str(name_of(static_cast<DType>(entry.type)), ", "),
                human_bytes(static_cast<double>(entry.bytes)), ")");
  return text;
}

Waits find_waits(const std::vector<FlightLog>& logs, double patience) {
  return Finder(logs, patience).run();
}

std::vector<FlightLog> read_flights(const fs::path& run) {
  const events::RunFolder folder = events::open_run(run);
  std::vector<FlightLog> logs;
  std::error_code none;
  for (fs::directory_iterator file(folder.flight(0).parent_path(), none), end; !none && file != end;
       file.increment(none))
    if (file->path().extension() == ".flight") try {
        logs.push_back(comm::read_flight(file->path()));
      } catch (const WorldError& error) {
        log_warning(str(error.what(), "; it is left out"));
      }
  std::ranges::sort(logs, {}, &FlightLog::rank);
  if (!logs.empty())  // ranks that a run of more workers has left
    std::erase_if(logs,
                  [world = logs[0].world](const FlightLog& log) { return log.rank >= world; });
  for (FlightLog& log : logs)  // ranks of one host have one clock
    for (const FlightLog& other : logs)
      if (other.host == log.host) {
        log.wall = other.wall;
        break;
      }
  if (logs.empty())
    throw ConfigError({{"", run.string(), "", "has no records of operations",
                        "they are written when a run starts; see docs/formats/flight.md"}});
  return logs;
}

}  // namespace tutti::trace
