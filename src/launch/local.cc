#include "launch/local.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/subprocess.h"
#include "base/text.h"
#include "launch/cores.h"
#include "launch/log_tail.h"
#include "launch/meeting_place.h"
#include "launch/signals.h"

namespace tutti::launch {
namespace {

constexpr double tick_seconds = 0.1;
constexpr double settle_seconds = 0.3;

struct Worker {
  int rank;
  fs::path log;
  std::uint64_t log_start;  // where this run's output begins in the log
  Subprocess process;
  std::optional<ProcessEnd> end;
};

std::string joined(const std::vector<int>& cores) {
  std::vector<std::string> texts;
  for (int core : cores) texts.push_back(str(core));
  return join(texts, ",");
}

// `place` among the workers of this host.
Worker start_worker(const Job& job, int place, int threads, const std::vector<int>& cores,
                    const fs::path& meeting) {
  const int rank = job.first_rank + place;
  const fs::path log = log_path(job.log_folder, rank);
  const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (output < 0) throw WorldError(str("cannot write ", log.string(), ": ", errno_text()));
  struct stat info{};
  ::fstat(output, &info);
  ProcessSpec spec{job.program, job.args, job.env, output, cores};
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"TUTTI_RANK", str(rank)},
           {"TUTTI_LOCAL_RANK", str(place)},
           {"TUTTI_LOCAL_SIZE", str(job.workers)},
           {"TUTTI_WORLD_SIZE", str(job.world > 0 ? job.world : job.workers)},
           {"TUTTI_ADDRESS", job.address},
           {"TUTTI_RENDEZVOUS", meeting.string()},
           {"TUTTI_THREADS", str(threads)},
           {"OMP_NUM_THREADS", str(threads)},
           {"MKL_NUM_THREADS", str(threads)}}) {
    spec.env.emplace_back(name, value);
  }
  try {
    Worker worker{rank, log, static_cast<std::uint64_t>(info.st_size), Subprocess(spec), {}};
    ::close(output);
    log_debug(str("rank ", rank, ": process ", worker.process.pid(), ", ", threads, " threads, ",
                  cores.empty() ? "any core" : "cores " + joined(cores)));
    return worker;
  } catch (...) {
    ::close(output);
    throw;
  }
}

// Which of several ends seen together was the cause and not the consequence: peers of a lost worker
// end with 1 (and may be seen first: the kernel takes a while to bury a large process) or, asked
// to, with 130.
int gravity(const ProcessEnd& end) {
  if (end.signal != 0) return 4;
  if (end.code == exit_bug) return 3;
  if (end.code == exit_world) return 1;
  if (end.code == exit_interrupted) return 0;
  return 2;
}

int exit_code_of(const ProcessEnd& end) {
  if (end.signal != 0) return exit_world;
  const bool known = end.code == exit_ok || end.code == exit_config || end.code == exit_bug ||
                     end.code == exit_interrupted;
  return known ? end.code : exit_world;
}

class Run {
 public:
  Run(const Job& job, const Hooks& hooks) : job_(job), hooks_(hooks) {}

  Outcome go() {
    make_folders(job_.log_folder);
    start_all();
    while (living() > 0) {
      wait_for_something();
      take_ends();
      take_signals();
      enforce_deadline();
      if (hooks_.tick) hooks_.tick();
    }
    if (outcome_.exit_code == exit_ok && any_interrupted_) {
      outcome_.exit_code = exit_interrupted;
    }
    return outcome_;
  }

 private:
  void start_all() {
    const std::vector<int> allowed = allowed_cores();
    const int cores = std::min<int>(usable_cores(), static_cast<int>(allowed.size()));
    const int threads = job_.threads > 0 ? job_.threads : std::max(1, cores / job_.workers);
    const auto shares = share_cores(job_.pin ? allowed : std::vector<int>{}, job_.workers, threads);
    for (int i = 0; i < job_.workers; ++i)
      workers_.push_back(start_worker(job_, i, threads, shares[static_cast<std::size_t>(i)],
                                      job_.meeting.empty() ? meeting_.folder() : job_.meeting));
  }

  int living() const {
    return static_cast<int>(
        std::count_if(workers_.begin(), workers_.end(), [](auto& w) { return !w.end; }));
  }

  void wait_for_something() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    double seconds = tick_seconds;
    for (const Worker& worker : workers_) {
      if (worker.end) continue;
      if (worker.process.pidfd() < 0) seconds = 0.01;
      fds.push_back({worker.process.pidfd(), POLLIN, 0});  // poll() leaves out -1
    }
    ::poll(fds.data(), fds.size(), static_cast<int>(seconds * 1000));
  }

  void take_ends() {
    for (Worker& worker : workers_) {
      if (worker.end) continue;
      worker.end = worker.process.end();
      if (!worker.end) continue;
      log_debug(str("rank ", worker.rank, ": ", to_text(*worker.end)));
      if (killing_ || failed_) continue;
      if (interrupted_elsewhere(*worker.end)) {
        outcome_.interrupted = true;
        say("interrupted on another host: the workers save and end");
        stop_all(job_.interrupt_grace);
      }
      if (was_interrupted(*worker.end)) {
        any_interrupted_ = true;
      } else if (!worker.end->ok()) {
        if (suspects_.empty()) decide_at_ = real_clock().now() + settle_seconds;
        suspects_.push_back(&worker);
      }
    }
    decide();
  }

  void decide() {
    if (suspects_.empty() || failed_) return;
    const auto first =
        std::max_element(suspects_.begin(), suspects_.end(),
                         [](Worker* a, Worker* b) { return gravity(*a->end) < gravity(*b->end); });
    const bool clear = gravity(*(*first)->end) > 1 || living() == 0;
    if (clear || real_clock().now() >= decide_at_) fail(**first);
  }

  // After SIGINT or SIGTERM to us, 130 is what workers should end with, and SIGTERM is what ends
  // those that had no handler yet.
  bool was_interrupted(const ProcessEnd& end) const {
    return outcome_.interrupted && (end.code == exit_interrupted || end.signal == SIGTERM);
  }

  // The ranks of all hosts stop together, and a worker of this one may be the first to end.
  bool interrupted_elsewhere(const ProcessEnd& end) const {
    return job_.world > job_.workers && !outcome_.interrupted && end.code == exit_interrupted;
  }

  void fail(const Worker& worker) {
    failed_ = true;
    outcome_.exit_code = exit_code_of(*worker.end);
    outcome_.failed_rank = worker.rank;
    outcome_.reason = str("rank ", worker.rank, ": ", to_text(*worker.end));
    for (const std::string& line : tail_of(worker.log, worker.log_start, job_.tail_lines)) {
      say(str("rank ", worker.rank, " | ", line));
    }
    say(str(outcome_.reason, living() > 0 ? "; ending the other workers" : "",
            " (all output: ", worker.log.string(), ")"));
    stop_all(job_.grace);
  }

  void take_signals() {
    const int count = signals_.count();
    if (count == signals_seen_) return;
    const bool first = signals_seen_ == 0;
    signals_seen_ = count;
    outcome_.interrupted = true;
    if (!first || count > 1) {
      say("interrupted again: killing the workers");
      any_interrupted_ = true;
      kill_all();
    } else if (living() > 0 && !failed_) {
      say("interrupted: the workers save and end (once more: kill them)");
      stop_all(job_.interrupt_grace);
    }
  }

  void stop_all(double grace) {
    for (Worker& worker : workers_) {
      if (worker.end) continue;
      worker.process.send(SIGTERM);
      worker.process.send(SIGCONT);  // one that is stopped would not hear it
    }
    deadline_ = std::min(deadline_, real_clock().now() + grace);
    grace_ = grace;
  }

  void kill_all() {
    killing_ = true;
    for (Worker& worker : workers_) {
      if (!worker.end) worker.process.kill_group(SIGKILL);
    }
  }

  void enforce_deadline() {
    if (killing_ || real_clock().now() < deadline_) return;
    for (const Worker& worker : workers_) {
      if (worker.end) continue;
      say(str("rank ", worker.rank, ": did not end within ", human_seconds(grace_),
              " of SIGTERM: killed"));
    }
    any_interrupted_ = true;
    kill_all();
  }

  void say(const std::string& line) const {
    if (hooks_.say) return hooks_.say(line);
    std::fprintf(stderr, "%s\n", line.c_str());
  }

  const Job& job_;
  const Hooks& hooks_;
  SignalCatcher signals_;
  MeetingPlace meeting_;  // after the workers' end: members are destroyed in reverse
  std::vector<Worker> workers_;
  std::vector<Worker*> suspects_;  // failed, in the order seen, while it is open who was first
  double decide_at_ = 0;
  Outcome outcome_;
  int signals_seen_ = 0;
  bool failed_ = false;
  bool killing_ = false;
  bool any_interrupted_ = false;  // a worker was cut short by what the person asked for
  double deadline_ = std::numeric_limits<double>::infinity();
  double grace_ = 0;
};

}  // namespace

Outcome run_local(const Job& job, const Hooks& hooks) {
  TUTTI_ASSERT(job.workers >= 1, "workers ", job.workers);
  return Run(job, hooks).go();
}

}  // namespace tutti::launch
