// A job: one program, started N times as the ranks of one world.
//
// Each worker finds in its environment TUTTI_RANK, TUTTI_WORLD_SIZE, TUTTI_LOCAL_RANK,
// TUTTI_LOCAL_SIZE (decimal), TUTTI_RENDEZVOUS (where the ranks meet; only comm reads it),
// TUTTI_ADDRESS (of this host, if there are several), TUTTI_THREADS and OMP_NUM_THREADS.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"

namespace tutti::launch {

struct Job {
  fs::path program;
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;  // for every worker
  int workers = 1;                                       // on this host
  int first_rank = 0, world = 0;                         // of several hosts; world 0: of workers
  std::string address;                                   // by which the other hosts reach this one
  fs::path meeting;              // where the ranks meet; empty: in a folder of this host's memory
  int threads = 0;               // a worker; 0: cores / workers, at least 1
  bool pin = true;               // to own cores, where workers x threads fit the machine
  fs::path log_folder;           // rank-000.log ... : what each worker wrote, appended
  double grace = 5;              // seconds from SIGTERM to SIGKILL, after another worker failed
  double interrupt_grace = 120;  // the same after SIGINT or SIGTERM to us: workers save first
  int tail_lines = 20;           // shown of a failed worker's output
};

struct Hooks {
  std::function<void()> tick;                   // about every 100 ms, and once after the last end
  std::function<void(const std::string&)> say;  // lines for the person; default: standard error
};

struct Outcome {
  int exit_code = 0;         // 0, 1, 2, 70 or 130: see error.h
  int failed_rank = -1;      // whose failure decided
  std::string reason;        // "rank 1: killed by signal 9 (Killed)"; empty if all went well
  bool interrupted = false;  // SIGINT or SIGTERM reached us, or another host
};

}  // namespace tutti::launch
