// Jobs that hang in the ways in which jobs hang.
#include "trace/waits.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

using namespace tutti;
using namespace tutti::trace;
using Process = FlightLog::Process;

namespace {

template <std::size_t size>
void put(std::array<char, size>& to, const char* text) {
  std::strncpy(to.data(), text, size - 1);
}

// A job of `size` ranks in one group "data"; all calls so far are `done` all-reduces.
struct Job {
  std::vector<FlightLog> logs;

  Job(int size, int done) {
    for (int rank = 0; rank < size; ++rank) {
      FlightLog log;
      log.rank = rank, log.world = size, log.process = 100 + rank, log.now = 1000;
      log.state = Process::runs;
      FlightGroup group{7, rank, size, {}};
      put(group.name, "data");
      log.groups.push_back(group);
      logs.push_back(log);
      for (int i = 1; i <= done; ++i) call(rank, "all_reduce", 900, 901);
    }
  }
  FlightEntry& call(int rank, const char* what, double started, double ended = 0) {
    FlightLog& log = logs[static_cast<std::size_t>(rank)];
    FlightEntry entry;
    entry.order = log.entries.size() + 1;
    entry.sequence = log.entries.size() + 1;
    entry.group = 0, entry.bytes = 4096, entry.type = static_cast<std::uint8_t>(DType::f32);
    entry.asked = entry.started = started, entry.ended = ended;
    put(entry.operation, what);
    put(entry.site, "engine.cc:12");
    log.entries.push_back(entry);
    return log.entries.back();
  }
  FlightEntry& message(int rank, const char* what, int peer, std::uint64_t sequence) {
    FlightEntry& entry = call(rank, what, 950);
    entry.message = 1, entry.peer = peer, entry.sequence = sequence;
    return entry;
  }
  bool says(const std::string& text) const {
    const std::string all = find_waits(logs).text;
    CAPTURE(all);
    return all.find(text) != std::string::npos;
  }
};

}  // namespace

TEST_CASE("waits: a job that is well") {
  Job job(3, 4);
  CHECK(find_waits(job.logs).well);
  for (int rank = 0; rank < 2; ++rank) job.call(rank, "all_reduce", 999);  // for a second
  CHECK(find_waits(job.logs).well);
  CHECK(job.says("nobody waits"));
}

TEST_CASE("waits: a rank without a record may be anything") {
  Job job(3, 4);
  job.logs.erase(job.logs.begin() + 1);
  CHECK_FALSE(find_waits(job.logs).well);
  CHECK(job.says("nobody else waits; rank 1 left no record that can be read here"));
}

TEST_CASE("waits: one has not come: it computes, is stopped, has ended") {
  for (const auto& [state, text] : {std::pair{Process::runs, "rank 1: it runs, and has not come"},
                                    {Process::stopped, "rank 1: it is STOPPED (kill -CONT 101"},
                                    {Process::ended, "rank 1: it has ENDED without a word"}}) {
    Job job(3, 4);
    job.call(0, "all_reduce", 960);
    job.call(2, "all_reduce", 940);
    job.logs[1].state = state;
    const Waits waits = find_waits(job.logs);
    CHECK(!waits.well);
    CHECK(waits.to_blame == std::vector<int>{1});
    REQUIRE(waits.waits.size() == 2);
    CHECK(waits.waits[0].absent == std::vector<int>{1});
    CHECK(waits.waits[0].seconds == 40);
    CHECK(job.says(text));
    CHECK(job.says(
        "rank 2 (process 102) runs\n  waits 1m 00s in data: all_reduce #5 (F32, 4.00 KiB), "
        "asked for at engine.cc:12; rank 1 did not come"));
    CHECK(job.says("last: data: all_reduce #4 (F32, 4.00 KiB), ended"));
  }
}

TEST_CASE("waits: one is stopped in the middle of the operation") {
  Job job(2, 4);
  job.call(0, "all_reduce", 960);
  job.call(1, "all_reduce", 960);
  CHECK(find_waits(job.logs).waits.at(0).absent.empty());
  job.logs[1].state = Process::stopped;
  CHECK(find_waits(job.logs).waits.at(0).absent == std::vector<int>{1});
  CHECK(find_waits(job.logs).to_blame == std::vector<int>{1});
}

TEST_CASE("waits: after the end, who had not come when the others gave up") {
  Job job(3, 4);
  for (const int rank : {0, 2}) job.call(rank, "all_reduce", 960, 964).failed = 1;
  job.call(0, "broadcast", 965, 965).failed = 1;   // because of it
  job.call(1, "all_reduce", 970, 970).failed = 1;  // too late
  for (FlightLog& log : job.logs) log.state = Process::failed;
  const Waits waits = find_waits(job.logs);
  CHECK(waits.waits.size() == 3);
  CHECK(waits.to_blame == std::vector<int>{1});
  CHECK(!waits.well);
  CHECK(
      job.says("  gave up after 4.0s in data: all_reduce #5 (F32, 4.00 KiB), asked for at "
               "engine.cc:12; rank 1 did not come"));
  CHECK(job.says(
      "look at rank 1: it has ended with an error, and has not come; the ranks' own words"));
}

TEST_CASE("waits: after the end, who was stopped in the middle and woken when the others gave up") {
  for (const bool notices : {false, true}) {
    CAPTURE(notices);
    Job job(3, 4);
    for (const int rank : {0, 2}) job.call(rank, "all_reduce", 960, 964).failed = 1;
    job.call(1, "all_reduce", 960, 970).failed = notices;
    if (!notices) job.call(1, "broadcast", 970, 970).failed = 1;
    for (FlightLog& log : job.logs) log.state = Process::failed;
    CHECK(find_waits(job.logs).to_blame == std::vector<int>{1});
    CHECK(job.says("asked for at engine.cc:12; rank 1 did not come"));
    CHECK((notices || job.says("broadcast #6 (F32, 4.00 KiB), asked for at engine.cc:12; ranks 0 "
                               "and 2 had given up before")));
  }
}

TEST_CASE("waits: other calls in the same place") {
  Job job(2, 4);
  job.call(0, "all_reduce", 999.5);
  job.call(1, "broadcast", 999.5);
  CHECK(!find_waits(job.logs).well);
  CHECK(job.says("but rank 1 called broadcast #5 (F32, 4.00 KiB) at engine.cc:12 in its place"));
  Job roots(2, 4);
  roots.call(0, "broadcast", 990).peer = 0;
  roots.call(1, "broadcast", 990).peer = 1;
  CHECK(!find_waits(roots.logs).waits.at(0).contradiction.empty());
  Job sizes(2, 4);
  sizes.call(0, "all_reduce", 990).bytes = 8192;
  sizes.call(1, "all_reduce", 990);
  CHECK(sizes.says("but rank 1 called all_reduce #5 (F32, 4.00 KiB)"));
  Job uneven(2, 4);  // which an exchange may be
  uneven.call(0, "all_to_all_v", 999).bytes = 8192;
  uneven.call(1, "all_to_all_v", 999);
  CHECK(find_waits(uneven.logs).well);
}

TEST_CASE("waits: messages, and a chain that ends at one") {
  Job job(3, 0);
  job.message(0, "recv", 1, 3);
  job.message(1, "recv", 2, 9);
  job.message(2, "send", 1, 8).ended = 951;
  Waits waits = find_waits(job.logs);
  CHECK(waits.to_blame == std::vector<int>{2});
  CHECK(job.says("recv #3 from 1"));
  job.message(2, "recv", 0, 1);
  waits = find_waits(job.logs);
  CHECK(waits.circle);
  CHECK(waits.to_blame.empty());
  CHECK(job.says("in a circle"));
}

TEST_CASE("waits: a peer that is further on has come; one without a file is said") {
  Job job(2, 4);
  job.call(0, "all_reduce", 940);
  for (int i = 0; i < 3; ++i) job.call(1, "all_reduce", 941, 942);
  job.logs[1].entries.erase(job.logs[1].entries.begin(), job.logs[1].entries.begin() + 5);
  CHECK(find_waits(job.logs).waits.at(0).absent.empty());
  CHECK(job.says("the transport itself is slow or broken"));
  Job alone(2, 4);
  alone.call(0, "all_reduce", 940);
  alone.logs.pop_back();
  CHECK(alone.says("1 members left no record"));
}

TEST_CASE("flight recorder: what is written is read, by whom, and how its process fares") {
  const TempFolder folder;
  const fs::path file = folder.path() / "rank-002.flight";
  const pid_t child = ::fork();
  if (child == 0) {
    comm::FlightRecorder recorder(file, 2, 3);
    const int group = recorder.add_group("data", 7, 2, 3);
    const auto ask = [&](std::uint64_t sequence) {
      return recorder.ask({group, "all_reduce", DType::f32, 64, sequence, -1, false,
                           std::source_location::current()});
    };
    const std::uint64_t first = ask(1);
    recorder.start(first);
    recorder.end(first, true);
    recorder.start(ask(2));
    recorder.span("forward", 5, 6);
    ::raise(SIGSTOP);
    for (std::uint64_t i = 3; i <= 3 + comm::FlightHead::capacity; ++i) ask(i);
    recorder.end(first, false);  // the ring has lost it: nothing happens
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  comm::FlightLog log = comm::read_flight(file);
  CHECK(log.state == Process::stopped);
  CHECK(log.rank == 2);
  CHECK(log.world == 3);
  CHECK(log.process == child);
  REQUIRE(log.groups.size() == 1);
  CHECK(std::string(log.groups[0].name.data()) == "data");
  REQUIRE(log.entries.size() == 3);
  CHECK(log.entries[0].failed == 1);
  CHECK(log.entries[0].ended >= log.entries[0].started);
  CHECK(log.entries[1].started > 0);
  CHECK(log.entries[1].ended == 0);
  CHECK(std::string(log.entries[1].site.data()).starts_with("waits_test.cc:"));
  CHECK(log.entries[2].span());
  CHECK(log.entries[2].ended == 6);
  CHECK(std::abs(log.now - real_clock().now()) < 5);
  ::kill(child, SIGCONT);
  REQUIRE(::waitpid(child, &status, 0) == child);
  log = comm::read_flight(file);
  CHECK(log.state == Process::ended);
  CHECK(log.entries.size() == comm::FlightHead::capacity);
  CHECK(log.entries.back().order == 3 + comm::FlightHead::capacity + 1);
  {
    const comm::FlightRecorder fresh(file, 0, 1);
  }
  CHECK(comm::read_flight(file).state == Process::closed);
  write_file(file, "something else");
  CHECK_THROWS_AS(comm::read_flight(file), WorldError);
}
