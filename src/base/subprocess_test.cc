#include "base/subprocess.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"

namespace tutti {
namespace {

ProcessSpec shell(const std::string& script) { return {"/bin/sh", {"-c", script}, {}, -1, {}}; }

// Gone, or a zombie that waits for init.
bool gone(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string id, name, state;
  return !(stat >> id >> name >> state) || state == "Z";
}

bool gone_within(pid_t pid, double seconds) {
  for (double end = real_clock().now() + seconds; real_clock().now() < end;) {
    if (gone(pid)) return true;
    real_clock().sleep(0.01);
  }
  return false;
}

pid_t read_pid(const fs::path& path) {
  for (int i = 0; i < 500; ++i) {
    std::ifstream in(path);
    pid_t pid = 0;
    if (in >> pid) return pid;
    real_clock().sleep(0.01);
  }
  FAIL("no pid in " << path);
  return 0;
}

TEST_CASE("the end of a process: code, signal, deadline") {
  CHECK(Subprocess(shell("exit 3")).wait(5) == ProcessEnd{3, 0});
  CHECK(Subprocess(shell("kill -9 $$")).wait(5) == ProcessEnd{0, 9});
  Subprocess slow(shell("exec sleep 60"));
  CHECK_FALSE(slow.wait(0.05));
  slow.kill_group(SIGTERM);
  CHECK(slow.wait(5) == ProcessEnd{0, SIGTERM});
  slow.kill_group(SIGKILL);  // nobody is left: nothing happens
  CHECK(to_text(ProcessEnd{0, 9}) == "killed by signal 9 (Killed)");
}

TEST_CASE("a program that is not there or cannot run") {
  CHECK_THROWS_WITH_AS(Subprocess({"/no/such", {}, {}, -1, {}}),
                       "cannot start /no/such: No such file or directory", WorldError);
  CHECK_THROWS_AS(Subprocess({"no-such-program", {}, {}, -1, {}}), WorldError);
  CHECK_THROWS_WITH_AS(Subprocess({"/etc/passwd", {}, {}, -1, {}}),
                       "cannot start /etc/passwd: Permission denied", WorldError);
}

TEST_CASE("output, environment, cores, stdin") {
  ProcessSpec spec =
      shell("echo $A:$B; echo err >&2; cat; grep Cpus_allowed_list /proc/self/status");
  spec.env = {{"A", "1"}, {"B", "x y"}, {"A", "2"}};
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  int core = 0;
  while (!CPU_ISSET(core, &set)) ++core;
  spec.cores = {core};
  const Captured got = run_and_capture(spec, 5);
  CHECK(got.end == ProcessEnd{0, 0});
  CHECK(got.output == "2:x y\nerr\nCpus_allowed_list:\t" + std::to_string(core) + "\n");
  CHECK_FALSE(run_and_capture(shell("exec sleep 60"), 0.1).end);
  CHECK(run_and_capture(shell("head -c 300000 /dev/zero"), 5).output.size() == 300000);
}

TEST_CASE("signals: a child starts with none blocked or ignored") {
  sigset_t block, old;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  sigprocmask(SIG_BLOCK, &block, &old);
  auto* handler = ::signal(SIGTERM, SIG_IGN);
  Subprocess child(shell("exec sleep 60"));
  ::signal(SIGTERM, handler);
  sigprocmask(SIG_SETMASK, &old, nullptr);
  child.kill_group(SIGTERM);
  CHECK(child.wait(5) == ProcessEnd{0, SIGTERM});
}

TEST_CASE("grandchildren end with their group") {
  TempFolder folder;
  const std::string file = (folder.path() / "pid").string();
  pid_t grandchild = 0;
  SUBCASE("when the owner goes out of scope") {
    Subprocess child(shell("sleep 60 & echo $! > " + file + "; wait"));
    grandchild = read_pid(file);
    CHECK_FALSE(gone(grandchild));
  }
  SUBCASE("when the child ends before them") {
    Subprocess child(shell("sleep 60 & echo $! > " + file));
    grandchild = read_pid(file);
    CHECK(child.wait(5) == ProcessEnd{0, 0});
  }
  CHECK(gone_within(grandchild, 5));
}

TEST_CASE("no orphan when the parent is killed with SIGKILL") {
  TempFolder folder;
  const std::string file = (folder.path() / "pid").string();
  const pid_t parent = fork();
  if (parent == 0) {
    try {
      Subprocess child(shell("echo $$ > " + file + "; exec sleep 60"));
      for (;;) pause();
    } catch (...) {
    }
    _exit(1);
  }
  const pid_t child = read_pid(file);
  CHECK_FALSE(gone(child));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  CHECK(gone_within(child, 5));
}

TEST_CASE("starting a child takes milliseconds") {
  const double start = real_clock().now();
  for (int i = 0; i < 20; ++i) CHECK(Subprocess({"true", {}, {}, -1, {}}).wait(5)->ok());
  CHECK(real_clock().now() - start < 5);  // on a loaded machine too
}

}  // namespace
}  // namespace tutti
