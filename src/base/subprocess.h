// Child processes that cannot outlive us and that we always reap.
//
// A child leads its own process group (a terminal's Ctrl-C reaches only the parent, which decides),
// reads /dev/null, has default signal handlers and an empty signal mask, and is killed by the
// kernel when the thread that started it ends, however that happens (PR_SET_PDEATHSIG). So start
// children from the main thread. Grandchildren are reached through the group, by kill_group() and
// the destructor, but not by the kernel when the parent is killed with SIGKILL.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"

namespace tutti {

struct ProcessSpec {
  fs::path program;               // a path, or a name that is looked up in PATH
  std::vector<std::string> args;  // without the program's name
  std::vector<std::pair<std::string, std::string>> env;  // on top of ours; later ones win
  int output = -1;         // a descriptor that becomes stdout and stderr; -1: ours (not owned)
  std::vector<int> cores;  // the only cores it may use; empty: ours
};

// How a process ended: by itself with `code`, or by `signal` (then not 0).
struct ProcessEnd {
  int code = 0;
  int signal = 0;
  bool ok() const { return code == 0 && signal == 0; }
  bool operator==(const ProcessEnd&) const = default;
};

// "exit code 3", "killed by signal 9 (Killed)".
std::string to_text(const ProcessEnd& end);

// Movable, one owner, one thread.
class Subprocess {
 public:
  // Returns once the program runs. Throws WorldError naming the program and the cause.
  explicit Subprocess(const ProcessSpec& spec);
  // Kills what is left of the group, and reaps.
  ~Subprocess();
  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;

  pid_t pid() const { return pid_; }
  // Readable once the process has ended, for poll(); -1 on kernels before 5.3.
  int pidfd() const { return pidfd_; }

  // The end, if it has come. wait: at most `seconds`.
  std::optional<ProcessEnd> end();
  std::optional<ProcessEnd> wait(double seconds);

  // To the process, or to all in its group; no-ops once it has ended.
  void send(int signal);
  void kill_group(int signal);

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<ProcessEnd> end_;
};

struct Captured {
  std::optional<ProcessEnd> end;  // empty: killed at the deadline
  std::string output;             // stdout and stderr, in the order written
};

// Runs to its end, at most `seconds`, and returns what it wrote. Throws as Subprocess does.
Captured run_and_capture(ProcessSpec spec, double seconds);

}  // namespace tutti
