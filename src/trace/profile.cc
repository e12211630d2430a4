#include "trace/profile.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "comm/cost.h"
#include "trace/window.h"

namespace tutti::trace {
namespace {

// One call of a group's operation, as its members saw it.
struct Meeting {
  std::vector<std::pair<const FlightLog*, const FlightEntry*>> members;
};

// Seconds that are covered by any of the intervals.
double covered(std::vector<std::pair<double, double>> intervals) {
  std::ranges::sort(intervals);
  double sum = 0, end = -1e300;
  for (const auto& [from, to] : intervals) {
    sum += std::max(0.0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return sum;
}

class Maker {
 public:
  Maker(const std::vector<FlightLog>& logs, std::int64_t first, std::int64_t last)
      : logs_(logs), window_(window_of(logs, first, last)) {}

  Profile run() {
    profile_.steps = window_.steps();
    profile_.first = window_.first;
    if (profile_.steps == 0) return std::move(profile_);
    for (const FlightLog& log : logs_) add_rank(log);
    meet();
    for (const auto& [key, meeting] : meetings_) add_meeting(meeting, size_of(meeting), false);
    for (const auto& [key, meeting] : messages_) add_meeting(meeting, 2, true);
    finish();
    return std::move(profile_);
  }

 private:
  double steps() const { return static_cast<double>(profile_.steps); }

  void add_rank(const FlightLog& log) {
    RankCost rank;
    rank.rank = log.rank;
    std::vector<std::pair<double, double>> busy;
    for (const FlightEntry& entry : log.entries) {
      if (entry.ended == 0 || !window_.holds(log, entry)) continue;
      const double seconds = (entry.ended - entry.started) / steps();
      if (!entry.span()) {
        busy.emplace_back(entry.started, entry.ended);
        continue;
      }
      const std::string name = entry.operation.data();
      if (name.starts_with("step ")) rank.step += seconds;
      for (const auto& [span, to] : {std::pair{"data", &rank.data},
                                     {"forward", &rank.forward},
                                     {"backward", &rank.backward},
                                     {"reduce", &rank.reduce},
                                     {"optimizer", &rank.optimizer}})
        if (name == span) *to += seconds;
    }
    rank.busy = rank.step > 0 ? covered(std::move(busy)) / steps() / rank.step : 0;
    profile_.ranks.push_back(rank);
  }

  // Collectives by group and number; messages stand alone.
  void meet() {
    for (const FlightLog& log : logs_)
      for (const FlightEntry& entry : log.entries) {
        if (entry.span() || entry.ended == 0 || entry.failed || !window_.holds(log, entry))
          continue;
        const FlightGroup& group = log.groups[static_cast<std::size_t>(entry.group)];
        if (entry.message)
          add_message(log, group, entry);
        else
          meetings_[{group.key, entry.sequence}].members.emplace_back(&log, &entry);
      }
  }

  static int size_of(const Meeting& meeting) {
    const auto& [log, entry] = meeting.members[0];
    return log->groups[static_cast<std::size_t>(entry->group)].size;
  }

  OperationCost& cost(const std::string& group, const FlightEntry& entry) {
    const std::string operation = entry.operation.data();
    OperationCost& cost = costs_[{group, operation}];
    cost.group = group, cost.operation = operation;
    return cost;
  }

  // Both ends of a message meet as members of a collective do.
  void add_message(const FlightLog& log, const FlightGroup& group, const FlightEntry& entry) {
    const bool sends = std::string(entry.operation.data()) == "send";
    const auto ends = sends ? std::pair(group.rank, entry.peer) : std::pair(entry.peer, group.rank);
    messages_[{group.key, ends.first, ends.second, entry.sequence}].members.emplace_back(&log,
                                                                                         &entry);
    const auto to = world_rank(group.key, entry.peer);
    if (sends && to) profile_.links[{log.rank, *to}] += static_cast<double>(entry.bytes);
  }

  void add_meeting(const Meeting& meeting, int size, bool message) {
    const auto& members = meeting.members;
    if (static_cast<int>(members.size()) != size) return;  // at the window's edge
    const auto at = [](const auto& member) { return member.second->started + member.first->wall; };
    const auto last = std::ranges::max_element(members, {}, at);
    const double begun = at(*last), earliest = at(*std::ranges::min_element(members, {}, at));
    if (!message) made_wait_[last->first->rank] += begun - earliest;
    for (const auto& member : members) {
      const FlightGroup& group =
          member.first->groups[static_cast<std::size_t>(member.second->group)];
      OperationCost& cost = this->cost(short_name(group.name.data()), *member.second);
      const double ended = member.second->ended + member.first->wall;
      cost.calls += 1;
      cost.bytes += static_cast<double>(member.second->bytes);
      cost.waited += std::min(begun, ended) - at(member);  // a short send ends before its receive
      cost.moved += std::max(0.0, ended - begun);
      members_[{cost.group, cost.operation}].insert(member.first->rank);
    }
    if (!message) add_links(members, *members[0].second);
  }

  // Each pair's share of what a bandwidth-optimal algorithm sends; of a rooted operation from the
  // root, or towards it.
  void add_links(const std::vector<std::pair<const FlightLog*, const FlightEntry*>>& members,
                 const FlightEntry& any) {
    const std::string operation = any.operation.data();
    const bool from_root = operation == "broadcast" || operation == "scatter_v";
    const bool to_root = operation == "reduce" || operation == "gather_v";
    const bool parts = operation == "scatter_v" || operation == "gather_v";
    const auto size = static_cast<double>(members.size());
    const auto bytes = static_cast<double>(any.bytes);
    const double each =
        from_root || to_root
            ? (parts ? bytes / size : bytes)
            : comm::traffic_factor(operation, static_cast<int>(size)) * bytes / (size - 1);
    const auto place = [](const auto& member) {
      return member.first->groups[static_cast<std::size_t>(member.second->group)].rank;
    };
    for (const auto& from : members)
      for (const auto& to : members)
        if (from.first != to.first && (!from_root || place(from) == any.peer) &&
            (!to_root || place(to) == any.peer))
          profile_.links[{from.first->rank, to.first->rank}] += each;
  }

  std::optional<int> world_rank(std::uint64_t key, int place) const {
    for (const FlightLog& log : logs_)
      for (const FlightGroup& group : log.groups)
        if (group.key == key && group.rank == place) return log.rank;
    return std::nullopt;
  }

  void finish() {
    for (auto& [key, cost] : costs_) {
      const double members = std::max(1.0, static_cast<double>(members_[key].size()));
      cost.ranks = ranks_of(cost.group);
      const double traffic = cost.bytes * comm::traffic_factor(cost.operation, cost.ranks);
      cost.bandwidth = cost.moved > 0 ? traffic / cost.moved : 0;
      cost.bytes /= static_cast<double>(std::max<std::int64_t>(1, cost.calls));
      cost.waited /= members * steps();
      cost.moved /= members * steps();
      cost.calls = static_cast<std::int64_t>(static_cast<double>(cost.calls) / members);
      profile_.operations.push_back(cost);
    }
    std::ranges::sort(profile_.operations, std::greater(),
                      [](const OperationCost& cost) { return cost.waited + cost.moved; });
    for (auto& [link, bytes] : profile_.links) bytes /= steps();
    for (RankCost& rank : profile_.ranks) rank.made_wait = made_wait_[rank.rank] / steps();
    name_straggler();
  }

  // Groups of one kind are as large as each other, but for uneven meshes.
  int ranks_of(const std::string& name) const {
    for (const FlightLog& log : logs_)
      for (const FlightGroup& group : log.groups)
        if (short_name(group.name.data()) == name) return group.size;
    return 1;
  }

  // One rank that the others wait for, if it is one, and by more than a fiftieth of a step.
  void name_straggler() {
    double sum = 0;
    const RankCost* worst = &profile_.ranks[0];
    for (const RankCost& rank : profile_.ranks) {
      sum += rank.made_wait;
      if (rank.made_wait > worst->made_wait) worst = &rank;
    }
    if (profile_.ranks.size() < 2 || worst->made_wait < 0.02 * worst->step ||
        worst->made_wait < 0.6 * sum)
      return;
    profile_.straggler = str("rank ", worst->rank, " comes last: the others wait for it ",
                             time_text(worst->made_wait), " of a step of ", time_text(worst->step));
  }

  const std::vector<FlightLog>& logs_;
  const Window window_;
  Profile profile_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Meeting> meetings_;
  std::map<std::tuple<std::uint64_t, int, int, std::uint64_t>, Meeting> messages_;
  std::map<std::pair<std::string, std::string>, OperationCost> costs_;
  std::map<std::pair<std::string, std::string>, std::set<int>> members_;
  std::map<int, double> made_wait_;
};

}  // namespace

Profile profile_of(const std::vector<FlightLog>& logs, std::int64_t first, std::int64_t last) {
  return Maker(logs, first, last).run();
}

void compare(Profile& profile, const comm::CostTable& costs) {
  for (OperationCost& cost : profile.operations)
    if (const auto seconds = costs.seconds(cost.operation, cost.bytes, cost.ranks); seconds > 0)
      cost.attainable = cost.bytes * comm::traffic_factor(cost.operation, cost.ranks) / *seconds;
}

// An operation's times are means of its group's members: of all ranks where all have such a group,
// as they mostly do.
Shares shares_of(const Profile& profile) {
  Shares shares;
  double step = 0;
  for (const RankCost& rank : profile.ranks)
    step += rank.step / static_cast<double>(profile.ranks.size());
  if (step <= 0) return shares;
  for (const OperationCost& cost : profile.operations)
    shares.moved += cost.moved / step, shares.waited += cost.waited / step;
  return shares;
}

}  // namespace tutti::trace
