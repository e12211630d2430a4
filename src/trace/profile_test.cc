// Two steps of two ranks whose times are known.
#include "trace/profile.h"

#include <doctest/doctest.h>

#include <cstring>

#include "base/fs.h"
#include "base/json.h"
#include "comm/cost.h"

using namespace tutti;
using namespace tutti::trace;

namespace {

template <std::size_t size>
void put(std::array<char, size>& to, const char* text) {
  to = {};
  std::strncpy(to.data(), text, size - 1);
}

class Log {
 public:
  Log(int rank, double clock) : clock_(clock) {
    log.rank = rank, log.world = 2, log.now = 100 + clock, log.wall = 1000 - clock;
    FlightGroup group{5, rank, 2, {}};
    put(group.name, "data (ranks 0, 1)");
    log.groups.push_back(group);
  }
  FlightEntry& add(const char* name, double start, double end) {
    FlightEntry entry;
    entry.order = ++order;
    put(entry.operation, name);
    entry.asked = entry.started = start + clock_, entry.ended = end + clock_;
    log.entries.push_back(entry);
    return log.entries.back();
  }
  FlightEntry& call(const char* name, double start, double end, std::int64_t bytes) {
    FlightEntry& entry = add(name, start, end);
    entry.group = 0, entry.bytes = bytes, entry.sequence = ++sequence;
    entry.type = static_cast<std::uint8_t>(DType::f32);
    return entry;
  }
  FlightLog log;
  std::uint64_t order = 0, sequence = 0;

 private:
  double clock_;  // hosts count from other moments
};

// Steps of 10 s: rank 1 computes 2 s longer, then both move 8000 bytes in 1 s; then rank 0 sends.
std::vector<FlightLog> logs(int steps = 2) {
  Log first(0, 50), second(1, 7);
  for (int step = 1; step <= steps; ++step) {
    const double at = 10 * step;
    first.add("forward", at, at + 2);
    second.add("forward", at, at + 4);
    first.call("all_reduce", at + 2, at + 5, 8000);
    second.call("all_reduce", at + 4, at + 5, 8000);
    for (Log* log : {&first, &second}) {
      FlightEntry& message = log->add(log == &first ? "send" : "recv", at + 6, at + 6.5);
      message.group = 0, message.message = 1, message.bytes = 100;
      message.sequence = static_cast<std::uint64_t>(step), message.peer = log == &first ? 1 : 0;
      log->add("optimizer", at + 7, at + 8);
      log->add(("step " + std::to_string(step)).c_str(), at, at + 9);
    }
  }
  return {first.log, second.log};
}

const OperationCost& operation(const Profile& profile, const char* name) {
  for (const OperationCost& cost : profile.operations)
    if (cost.operation == name) return cost;
  throw std::runtime_error(name);
}

}  // namespace

TEST_CASE("profile: times, bandwidth, links and the straggler") {
  const Profile profile = profile_of(logs());
  CHECK(profile.first == 1);
  CHECK(profile.steps == 2);
  REQUIRE(profile.ranks.size() == 2);
  CHECK(profile.ranks[0].step == doctest::Approx(9));
  CHECK(profile.ranks[0].forward == doctest::Approx(2));
  CHECK(profile.ranks[1].forward == doctest::Approx(4));
  CHECK(profile.ranks[1].optimizer == doctest::Approx(1));
  CHECK(profile.ranks[0].busy == doctest::Approx(3.5 / 9));
  CHECK(profile.ranks[0].made_wait == 0);
  CHECK(profile.ranks[1].made_wait == doctest::Approx(2));
  const OperationCost& reduce = operation(profile, "all_reduce");
  CHECK(reduce.group == "data");
  CHECK(reduce.calls == 2);
  CHECK(reduce.bytes == doctest::Approx(8000));
  CHECK(reduce.waited == doctest::Approx(1));  // 2 s of one of two members
  CHECK(reduce.moved == doctest::Approx(1));
  CHECK(reduce.bandwidth == doctest::Approx(8000));
  CHECK(profile.links.at({0, 1}) == doctest::Approx(8100));
  CHECK(profile.links.at({1, 0}) == doctest::Approx(8000));
  CHECK(profile.straggler ==
        "rank 1 comes last: the others wait for it 2.00 s of a step of 9.00 s");
  const std::string text = profile_text(profile), page = profile_html(profile, "a <run>");
  CHECK(text.find("data   all_reduce  1 ") != std::string::npos);
  CHECK(page.find("a &lt;run&gt;") != std::string::npos);
  CHECK(page.find("straggler") != std::string::npos);
}

TEST_CASE("profile: what share moves and what waits; attained beside attainable") {
  const TempFolder folder;
  const fs::path file = folder.path() / "costs.json";
  write_file(file, R"({"format": "tutti comm profile", "tables": [{"transport": "shm",
    "operation": "all_reduce", "buffers": "shared", "ranks": 2,
    "points": [{"bytes": 8000, "seconds": 0.25}]}]})");
  Profile profile = profile_of(logs());
  const OperationCost& reduce = operation(profile, "all_reduce");
  double moved = 0, waited = 0;
  for (const OperationCost& cost : profile.operations) moved += cost.moved, waited += cost.waited;
  CHECK(shares_of(profile).moved == doctest::Approx(moved / 9));
  CHECK(shares_of(profile).waited == doctest::Approx(waited / 9));
  CHECK(moved >= reduce.moved);
  CHECK(profile_text(profile).find("attainable") == std::string::npos);
  compare(profile, comm::CostTable::read(file));
  CHECK(reduce.attainable == doctest::Approx(32000));
  CHECK(operation(profile, "send").attainable == 0);
  CHECK(profile_text(profile).find("25.0%") != std::string::npos);
}

TEST_CASE("profile: a receive that was early waits; rooted operations use the root's links") {
  std::vector<FlightLog> all = logs(1);
  for (FlightLog& log : all)
    for (FlightEntry& entry : log.entries) {
      if (std::string(entry.operation.data()) == "recv") entry.started -= 0.5;
      if (std::string(entry.operation.data()) != "all_reduce") continue;
      put(entry.operation, "reduce");
      entry.peer = 1;
    }
  const Profile profile = profile_of(all);
  CHECK(operation(profile, "recv").waited == doctest::Approx(0.5));
  CHECK(operation(profile, "recv").moved == doctest::Approx(0.5));
  CHECK(operation(profile, "send").waited == doctest::Approx(0));
  CHECK(profile.links.at({0, 1}) == doctest::Approx(8100));
  CHECK(!profile.links.contains({1, 0}));
}

TEST_CASE("profile: a window of steps, a ring that has lost the first, no step at all") {
  CHECK(profile_of(logs(5), 2, 3).first == 2);
  CHECK(profile_of(logs(5), 2, 3).steps == 2);
  CHECK(profile_of(logs(5), 4).steps == 2);
  std::vector<FlightLog> lost = logs(5);
  for (FlightLog& log : lost) log.entries.erase(log.entries.begin(), log.entries.begin() + 1);
  CHECK(profile_of(lost).first == 2);
  lost[1].entries.resize(12);  // rank 1 has made three
  CHECK(profile_of(lost).steps == 1);
  CHECK(profile_of(logs(0)).steps == 0);
  CHECK(profile_text(profile_of(logs(0))).find("no step is whole") != std::string::npos);
  CHECK(profile_html(profile_of({}), "x").find("no step is whole") != std::string::npos);
}

TEST_CASE("chrome trace: a thread a lane, times from the first entry") {
  const Json trace = Json::parse(chrome_trace(logs(1)));
  std::map<std::string, int> threads;
  int events = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") ++threads[event["args"]["name"].get<std::string>()];
    if (event["ph"] != "X") continue;
    ++events;
    CHECK(event["ts"].get<double>() >= 0);
    if (event["name"] == "all_reduce" && event["pid"] == 1) {
      CHECK(event["ts"].get<double>() == doctest::Approx(4e6));  // though its clock began elsewhere
      CHECK(event["dur"].get<double>() == doctest::Approx(1e6));
      CHECK(event["args"]["bytes"] == 8000);
    }
  }
  CHECK(events == 10);
  CHECK(threads == std::map<std::string, int>{{"passes", 2},
                                              {"data (ranks 0, 1)", 2},
                                              {"data (ranks 0, 1): send", 1},
                                              {"data (ranks 0, 1): recv", 1}});
}

TEST_CASE("traffic factors") {
  CHECK(comm::traffic_factor("all_reduce", 4) == doctest::Approx(1.5));
  CHECK(comm::traffic_factor("tree_reduce_scatter", 4) == doctest::Approx(0.75));
  CHECK(comm::traffic_factor("broadcast", 4) == 1);
  CHECK(comm::traffic_factor("barrier", 4) == 0);
}
