// Event files read back.
#pragma once
#include <fstream>
#include <vector>

#include "base/fs.h"
#include "base/json.h"

namespace tutti::events {

// All whole records of a file, in order; a torn last line and foreign lines are left out. After a
// record "resume" of step S, earlier records of steps above S are gone: they were done again. Empty
// if there is no such file.
std::vector<Json> read_events(const fs::path& file);

// Follows a growing file.
class Tail {
 public:
  explicit Tail(fs::path file) : file_(std::move(file)) {}
  // The records that have come since the last call.
  std::vector<Json> poll();
  // Leaves out what is there by now.
  void skip();

 private:
  fs::path file_;
  std::streamoff at_ = 0;
  std::string torn_;  // the beginning of a line whose end has not come yet
};

}  // namespace tutti::events
