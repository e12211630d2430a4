// Where the hosts of a run meet: a folder that all of them see, inside the run's own. The first
// host opens it and keeps its sign alive; the others join. A sign that a killed launcher left is
// told from a living one by its heartbeat.
#pragma once
#include <functional>
#include <string>

#include "base/fs.h"

namespace tutti::launch {

// What the first host says to those that join.
struct HostsSign {
  fs::path folder;  // where the ranks meet
  int hosts = 1;
  int workers = 1;  // of all hosts
  int threads = 1;  // a worker
  bool resume = false;
};

class HostsMeeting {
 public:
  // Takes the place of a sign that lies there. `sign.folder` is chosen here.
  HostsMeeting(const fs::path& run, HostsSign sign);
  ~HostsMeeting();
  HostsMeeting(const HostsMeeting&) = delete;
  HostsMeeting& operator=(const HostsMeeting&) = delete;
  const fs::path& folder() const { return sign_.folder; }
  // Call often: at most once a second it writes. A disk that fails is told once and ends nothing.
  void beat();

 private:
  void write();

  fs::path file_;
  HostsSign sign_;
  std::uint64_t beats_ = 0;
  double written_ = 0;
  bool silent_ = false;  // the last beat could not be written
};

// A host's place in the run while it lives. ConfigError if another process has it.
class HostClaim {
 public:
  HostClaim(const HostsSign& sign, int host);
  ~HostClaim();
  HostClaim(const HostClaim&) = delete;
  HostClaim& operator=(const HostClaim&) = delete;

 private:
  fs::path file_;
};

// Waits for a sign that lives. WorldError after `timeout` seconds without one, or when `stop()`.
HostsSign await_hosts(const fs::path& run, double timeout, const std::function<bool()>& stop);

}  // namespace tutti::launch
