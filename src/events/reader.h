// Event files read back. docs/formats/events.md tells the records.
#pragma once
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/json.h"

namespace tutti::events {

// All whole records of a file, in order; a torn last line and foreign lines are left out. After a
// record "resume" of step S, earlier records of steps above S are gone: they were done again. Empty
// if there is no such file.
std::vector<Json> read_events(const fs::path& file);

// Follows a growing file. Every record that it hands out has a text "kind", a whole number "step",
// a number "time", and, if its kind is "instant", a text "name" and an object "data".
class Tail {
 public:
  explicit Tail(fs::path file) : file_(std::move(file)) {}
  // The records that have come since the last call.
  std::vector<Json> poll();
  // The same one by one, so that a long file is never in memory at once.
  void poll(const std::function<void(Json&&)>& take);
  // Leaves out what is there by now.
  void skip();

 private:
  fs::path file_;
  std::streamoff at_ = 0;
  std::string torn_;  // the beginning of a line whose end has not come yet
};

// One rank's file in a form that stays small over a million steps: numbers as series, the rest as
// records. What a resumed run did again stands once, as it was done last.
class History {
 public:
  struct Point {
    std::int64_t step;
    double value;
  };
  using Series = std::vector<Point>;  // steps rise

  explicit History(const fs::path& file);

  const Series& series(const std::string& name) const;  // empty if there is none
  std::vector<std::string> names() const;
  std::optional<double> last(const std::string& name) const;
  const std::vector<Json>& instants() const { return instants_; }
  const std::vector<Json>& spans() const { return spans_; }
  std::int64_t last_step() const { return last_step_; }  // of scalars; 0 if there are none
  double first_time() const { return first_time_; }      // seconds since 1970; 0: no records
  double last_time() const { return last_time_; }

 private:
  void take(Json&& record);
  void forget_after(std::int64_t step);

  std::map<std::string, Series> series_;
  std::vector<Json> instants_, spans_;
  std::int64_t last_step_ = 0;
  double first_time_ = 0, last_time_ = 0;
};

}  // namespace tutti::events
