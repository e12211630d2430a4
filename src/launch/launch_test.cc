#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "launch/cores.h"
#include "launch/local.h"
#include "launch/log_tail.h"
#include "launch/meeting_place.h"

namespace tutti::launch {
namespace {

struct Bench {
  TempFolder folder;
  std::vector<std::string> said;
  Job job;
  Hooks hooks{{}, [this](const std::string& line) { said.push_back(line); }};

  explicit Bench(const std::string& script, int workers = 2) {
    job.program = "/bin/sh";
    job.args = {"-c", script};
    job.workers = workers;
    job.log_folder = folder.path() / "logs";
    job.env = {{"DIR", folder.path().string()}};
    job.grace = 5;
  }
  Outcome run() { return run_local(job, hooks); }
  std::string log(int rank) const { return read_file(log_path(job.log_folder, rank)); }
  bool said_part(const std::string& part) const {
    return std::any_of(said.begin(), said.end(),
                       [&](auto& line) { return line.find(part) != std::string::npos; });
  }
};

bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string id, name, state;
  return (stat >> id >> name >> state) && state != "Z";
}

bool ends_within(pid_t pid, double seconds) {
  for (double end = real_clock().now() + seconds; real_clock().now() < end;) {
    if (!alive(pid)) return true;
    real_clock().sleep(0.01);
  }
  return false;
}

bool appears_within(const fs::path& path, double seconds) {
  for (double end = real_clock().now() + seconds; real_clock().now() < end;) {
    if (fs::exists(path) && fs::file_size(path) > 0) return true;
    real_clock().sleep(0.01);
  }
  return false;
}

// Both workers have set up their traps.
bool ready(const Bench& bench) {
  return appears_within(bench.folder.path() / "pid0", 5) &&
         appears_within(bench.folder.path() / "pid1", 5);
}

pid_t pid_of(const Bench& bench, int rank) {
  return std::stoi(read_file(bench.folder.path() / str("pid", rank)));
}

// What a well-behaved worker does: on SIGTERM it saves, then ends with 130.
const std::string polite =
    "trap 'echo saved; exit 130' TERM; echo $$ > $DIR/pid$TUTTI_RANK; "
    "while :; do sleep 0.02; done";

TEST_CASE("each worker knows its place; outputs lie in logs") {
  Bench bench(
      "echo $TUTTI_RANK/$TUTTI_LOCAL_RANK/$TUTTI_WORLD_SIZE $OMP_NUM_THREADS; echo e >&2;"
      "test -d $TUTTI_RENDEZVOUS && touch $TUTTI_RENDEZVOUS/mine",
      3);
  bench.job.threads = 2;
  int ticks = 0;
  bench.hooks.tick = [&] { ++ticks; };
  const Outcome outcome = bench.run();
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.reason.empty());
  CHECK(bench.log(0) == "0/0/3 2\ne\n");
  CHECK(bench.log(2) == "2/2/3 2\ne\n");
  CHECK(ticks >= 1);
  CHECK(bench.said.empty());
}

TEST_CASE("nothing is left where the ranks met") {
  Bench bench("echo $TUTTI_RENDEZVOUS; touch $TUTTI_RENDEZVOUS/x; exit $TUTTI_RANK");
  CHECK(bench.run().exit_code == 1);
  CHECK_FALSE(fs::exists(std::string(trim(bench.log(0)))));
}

TEST_CASE("a failing worker: its last lines with its rank, the others ended, its code") {
  Bench bench(
      "if [ $TUTTI_RANK = 1 ]; then "
      "until [ -s $DIR/pid0 ]; do sleep 0.01; done; "
      "for i in 1 2 3 4 5; do echo line $i; done; exit 70; fi; " +
      polite);
  bench.job.tail_lines = 3;
  const Outcome outcome = bench.run();
  CHECK(outcome.exit_code == 70);
  CHECK(outcome.failed_rank == 1);
  CHECK(outcome.reason == "rank 1: exit code 70");
  CHECK(bench.said[0] == "rank 1 | line 3");
  CHECK(bench.said[2] == "rank 1 | line 5");
  CHECK(bench.said_part("rank 1: exit code 70; ending the other workers"));
  CHECK(bench.log(0) == "saved\n");
  CHECK_FALSE(alive(pid_of(bench, 0)));
}

TEST_CASE("exit codes pass through or become 1") {
  for (auto [code, expected] :
       {std::pair{0, 0}, {1, 1}, {2, 2}, {3, 1}, {70, 70}, {127, 1}, {130, 130}}) {
    CHECK(Bench(str("exit ", code), 1).run().exit_code == expected);
  }
}

TEST_CASE("killed by SIGKILL: the cause is told, not the peers' consequences") {
  Bench bench(
      "echo $$ > $DIR/pid$TUTTI_RANK; if [ $TUTTI_RANK = 0 ]; then "
      "until [ -s $DIR/pid1 ]; do sleep 0.01; done; p=$(cat $DIR/pid1); kill -9 $p; "
      "echo lost rank 1; exit 1; fi; sleep 60");
  const Outcome outcome = bench.run();
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.reason == "rank 1: killed by signal 9 (Killed)");
}

TEST_CASE("a stubborn worker is killed after the grace") {
  Bench bench(
      "if [ $TUTTI_RANK = 1 ]; then until [ -s $DIR/pid0 ]; do sleep 0.01; done; exit 2; fi;"
      " trap '' TERM; echo $$ > $DIR/pid0; while :; do sleep 0.02; done");
  bench.job.grace = 0.3;
  const double start = real_clock().now();
  const Outcome outcome = bench.run();
  CHECK(real_clock().now() - start < 5);
  CHECK(outcome.exit_code == 2);
  CHECK(bench.said_part("rank 0: did not end within"));
  CHECK_FALSE(alive(pid_of(bench, 0)));
}

TEST_CASE("SIGINT and SIGTERM: one SIGTERM to each worker, they save, 130") {
  for (int signal : {SIGINT, SIGTERM}) {
    Bench bench(polite);
    std::thread person([&] {
      ready(bench);
      kill(getpid(), signal);
    });
    const Outcome outcome = bench.run();
    person.join();
    CHECK(outcome.exit_code == 130);
    CHECK(outcome.interrupted);
    CHECK(outcome.failed_rank == -1);
    CHECK(bench.log(0) == "saved\n");
    CHECK(bench.log(1) == "saved\n");
  }
}

TEST_CASE("interrupted on another host: the ranks that stop with it are no failure") {
  Bench bench(
      "trap 'sleep 0.6; echo saved; exit 130' TERM; echo $$ > $DIR/pid$TUTTI_RANK; "
      "[ $TUTTI_RANK = 2 ] && { until [ -s $DIR/pid3 ]; do sleep 0.02; done; exit 130; }; "
      "while :; do sleep 0.02; done");
  bench.job.first_rank = 2;
  bench.job.world = 4;
  bench.job.grace = 0.1;  // for a failure's
  const Outcome outcome = bench.run();
  CHECK(outcome.exit_code == 130);
  CHECK(outcome.interrupted);
  CHECK(outcome.failed_rank == -1);
  CHECK(bench.log(3) == "saved\n");
  CHECK(bench.said_part("interrupted on another host"));
}

TEST_CASE("a second signal kills; so does the end of the interrupt's grace") {
  Bench bench("trap '' TERM; echo $$ > $DIR/pid$TUTTI_RANK; while :; do sleep 0.02; done");
  bool twice = false;
  SUBCASE("a second signal") { twice = true; }
  SUBCASE("the grace") { bench.job.interrupt_grace = 0.2; }
  std::thread person([&] {
    ready(bench);
    kill(getpid(), SIGINT);
    if (!twice) return;
    real_clock().sleep(0.2);
    kill(getpid(), SIGINT);
  });
  const Outcome outcome = bench.run();
  person.join();
  CHECK(outcome.exit_code == 130);
  CHECK_FALSE(alive(pid_of(bench, 0)));
  CHECK_FALSE(alive(pid_of(bench, 1)));
}

TEST_CASE("work that ends well in spite of a signal ended well") {
  Bench bench("trap 'exit 0' TERM; echo $$ > $DIR/pid$TUTTI_RANK; while :; do sleep 0.02; done");
  std::thread person([&] {
    ready(bench);
    kill(getpid(), SIGTERM);
  });
  CHECK(bench.run().exit_code == 0);
  person.join();
}

TEST_CASE("SIGKILL of the launcher ends the workers; the next launch clears its meeting place") {
  Bench bench("echo $TUTTI_RENDEZVOUS > $DIR/met; echo $$ > $DIR/pid$TUTTI_RANK; exec sleep 60");
  const pid_t launcher = fork();
  if (launcher == 0) {
    run_local(bench.job);
    _exit(0);
  }
  REQUIRE(ready(bench));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  CHECK(ends_within(pid_of(bench, 0), 5));
  CHECK(ends_within(pid_of(bench, 1), 5));
  const fs::path met{std::string(trim(read_file(bench.folder.path() / "met")))};
  CHECK(fs::exists(met));
  MeetingPlace next;
  CHECK_FALSE(fs::exists(met));
  MeetingPlace beside;  // does not touch a living one's
  CHECK(fs::exists(next.folder()));
}

TEST_CASE("a program that is missing: WorldError, and no worker is left") {
  Bench bench("");
  bench.job.program = "/no/such/program";
  CHECK_THROWS_AS(bench.run(), WorldError);
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);  // no child, no zombie
}

TEST_CASE("cores are shared in equal slices or not at all") {
  using Shares = std::vector<std::vector<int>>;
  CHECK(share_cores({0, 1, 2, 3}, 2, 1) == Shares{{0, 1}, {2, 3}});
  CHECK(share_cores({4, 6, 9}, 2, 1) == Shares{{4}, {6}});
  CHECK(share_cores({0, 1}, 2, 2) == Shares{{}, {}});
  CHECK(share_cores({0, 1}, 3, 1) == Shares{{}, {}, {}});
  CHECK(usable_cores() >= 1);
  CHECK(usable_cores() <= static_cast<int>(allowed_cores().size()));
}

TEST_CASE("the tail of a log") {
  TempFolder folder;
  const fs::path path = folder.path() / "log";
  CHECK(tail_of(path, 0, 5).empty());
  std::ofstream(path) << "old\na\x1b[31mb\n\nc";
  CHECK(tail_of(path, 4, 5) == std::vector<std::string>{"a[31mb", "", "c"});
  CHECK(tail_of(path, 0, 1) == std::vector<std::string>{"c"});
  CHECK(tail_of(path, 4000, 1).empty());
}

}  // namespace
}  // namespace tutti::launch
