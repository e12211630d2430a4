#include "base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

extern char** environ;

namespace tutti {
namespace {

fs::path find_program(const fs::path& program) {
  if (program.string().find('/') != std::string::npos) return program;
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path ? path : "/usr/bin:/bin", ':')) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / program;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw WorldError(str("cannot start ", program.string(), ": not found in PATH"));
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> result;
  const auto is_added = [&](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('='));
    return std::any_of(added.begin(), added.end(), [&](auto& pair) { return pair.first == name; });
  };
  for (char** entry = environ; *entry; ++entry) {
    if (!is_added(*entry)) result.emplace_back(*entry);
  }
  for (auto it = added.begin(); it != added.end(); ++it) {
    const bool overridden =
        std::any_of(it + 1, added.end(), [&](auto& later) { return later.first == it->first; });
    if (!overridden) result.push_back(it->first + "=" + it->second);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// All that the child needs, made before fork(): between fork and exec only async-signal-safe calls
// are allowed, as other threads may have held locks.
struct Prepared {
  std::string program;
  std::vector<std::string> args, env;
  std::vector<char*> argv, envp;
  int output = -1;
  cpu_set_t cores{};
  bool pinned = false;
  pid_t parent = 0;
};

Prepared prepare(const ProcessSpec& spec) {
  Prepared result;
  result.program = find_program(spec.program).string();
  result.args.push_back(result.program);
  result.args.insert(result.args.end(), spec.args.begin(), spec.args.end());
  result.env = environment_with(spec.env);
  result.argv = pointers(result.args);
  result.envp = pointers(result.env);
  result.output = spec.output;
  CPU_ZERO(&result.cores);
  for (int core : spec.cores) {
    TUTTI_ASSERT(core >= 0 && core < CPU_SETSIZE, "core ", core);
    CPU_SET(core, &result.cores);
  }
  result.pinned = !spec.cores.empty();
  result.parent = ::getpid();
  return result;
}

// In the child. Returns only if it fails, with errno set.
void become(const Prepared& p) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (::getppid() != p.parent) ::_exit(exit_world);  // the parent died before prctl
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, STDIN_FILENO) < 0) return;
  if (null > STDERR_FILENO) ::close(null);
  if (p.output >= 0) {
    if (::dup2(p.output, STDOUT_FILENO) < 0 || ::dup2(p.output, STDERR_FILENO) < 0) return;
  }
  if (p.pinned) ::sched_setaffinity(0, sizeof p.cores, &p.cores);  // a wish: go on without
  ::execve(p.program.c_str(), p.argv.data(), p.envp.data());
}

// Forks; the child's errno comes back through a pipe that exec closes.
pid_t start(const Prepared& prepared, int* error) {
  int report[2];
  *error = 0;
  if (::pipe2(report, O_CLOEXEC) != 0) {
    *error = errno;
    return -1;
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    become(prepared);
    const int why = errno;
    [[maybe_unused]] const auto written = ::write(report[1], &why, sizeof why);
    ::_exit(127);
  }
  if (pid < 0) *error = errno;
  ::close(report[1]);
  if (pid > 0) {
    ssize_t got;
    do got = ::read(report[0], error, sizeof *error);
    while (got < 0 && errno == EINTR);
    if (got == sizeof *error) ::waitpid(pid, nullptr, 0);
  }
  ::close(report[0]);
  return pid;
}

void poll_fd(int fd, double seconds) {
  pollfd entry{fd, POLLIN, 0};
  ::poll(&entry, 1, std::max(0, static_cast<int>(seconds * 1000 + 0.999)));
}

}  // namespace

std::string to_text(const ProcessEnd& end) {
  if (end.signal == 0) return str("exit code ", end.code);
  const char* name = ::strsignal(end.signal);
  return str("killed by signal ", end.signal, " (", name ? name : "?", ")");
}

Subprocess::Subprocess(const ProcessSpec& spec) {
  const Prepared prepared = prepare(spec);
  int error = 0;
  pid_ = start(prepared, &error);
  if (error != 0) {
    throw WorldError(str("cannot start ", prepared.program, ": ", errno_text(error)));
  }
#ifdef SYS_pidfd_open
  pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
#endif
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::exchange(other.pidfd_, -1)),
      end_(std::exchange(other.end_, {})) {}

Subprocess::~Subprocess() {
  if (pid_ > 0) {
    kill_group(SIGKILL);
    while (!end_) wait(1);
  }
  if (pidfd_ >= 0) ::close(pidfd_);
}

std::optional<ProcessEnd> Subprocess::end() {
  if (end_ || pid_ <= 0) return end_;
  siginfo_t info{};
  // WNOWAIT first: while the leader is a zombie its group's number cannot be taken by others, so
  // that stragglers of the group can still be killed safely.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return {};
  }
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  end_ = WIFSIGNALED(status) ? ProcessEnd{0, WTERMSIG(status)} : ProcessEnd{WEXITSTATUS(status), 0};
  return end_;
}

std::optional<ProcessEnd> Subprocess::wait(double seconds) {
  const double deadline = real_clock().now() + seconds;
  for (;;) {
    if (end()) return end_;
    const double left = deadline - real_clock().now();
    if (left <= 0) return {};
    if (pidfd_ >= 0) {
      poll_fd(pidfd_, std::min(left, 1.0));
    } else {
      real_clock().sleep(std::min(left, 0.005));
    }
  }
}

void Subprocess::send(int signal) {
  if (pid_ > 0 && !end_) ::kill(pid_, signal);
}

void Subprocess::kill_group(int signal) {
  if (pid_ > 0 && !end_) ::kill(-pid_, signal);
}

Captured run_and_capture(ProcessSpec spec, double seconds) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw WorldError(str("pipe: ", errno_text()));
  spec.output = ends[1];
  Captured result;
  try {
    Subprocess process(spec);
    ::close(std::exchange(ends[1], -1));
    const double deadline = real_clock().now() + seconds;
    char buffer[4096];
    for (;;) {
      const double left = deadline - real_clock().now();
      if (left <= 0) break;
      pollfd entry{ends[0], POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(left * 1000) + 1) <= 0) continue;
      const ssize_t got = ::read(ends[0], buffer, sizeof buffer);
      if (got <= 0) break;
      result.output.append(buffer, static_cast<std::size_t>(got));
    }
    result.end = process.wait(std::max(0.0, deadline - real_clock().now()));
  } catch (...) {
    ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
    throw;
  }
  ::close(ends[0]);
  return result;
}

}  // namespace tutti
