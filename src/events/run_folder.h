// Where things lie in a run's folder, and who may write there.
#pragma once
#include <string>

#include "base/fs.h"

namespace tutti::events {

class RunFolder {
 public:
  explicit RunFolder(fs::path path) : path_(std::move(path)) {}
  const fs::path& path() const { return path_; }
  fs::path recipe() const { return path_ / "recipe.yaml"; }
  fs::path tokenizer() const { return path_ / "tokenizer.json"; }  // one that the run learnt
  fs::path events(int rank) const;                                 // events/rank-000.jsonl
  fs::path flight(int rank) const;                                 // events/rank-000.flight
  fs::path checkpoints() const { return path_ / "checkpoints"; }
  fs::path logs() const { return path_ / "logs"; }
  fs::path log(int rank) const;  // logs/rank-000.log
  fs::path tensorboard() const { return path_ / "tensorboard"; }
  fs::path report() const { return path_ / "report.html"; }
  fs::path summary() const { return path_ / "summary.json"; }

 private:
  fs::path path_;
};

// Makes the folders of a new run. ConfigError if a run lies there already (how to resume it or to
// choose another folder); WorldError if it may not be written.
RunFolder create_run(const fs::path& path);

// The same in a folder of its own, runs/NAME-DATE, to which the link runs/NAME then points (unless
// something else has that name).
RunFolder create_dated_run(const std::string& name);

// ConfigError if there is no run.
RunFolder open_run(const fs::path& path);

// "runs/shakespeare-20261201-104500", in UTC, with -2, -3 ... appended if it exists.
fs::path default_run_path(const std::string& name);

// Held by the process that runs the run; ends with it however it dies.
class RunLock {
 public:
  // ConfigError naming the other process if the run is in use; WorldError if it cannot be locked.
  explicit RunLock(const RunFolder& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  void take(const RunFolder& run, const fs::path& file) const;
  int fd_ = -1;
};

}  // namespace tutti::events
