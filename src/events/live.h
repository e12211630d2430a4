// A run while it runs, for the person who started it: follows the event files and shows them, in
// place on a terminal, as plain lines elsewhere.
#pragma once
#include <cstdint>
#include <deque>
#include <iosfwd>
#include <string>
#include <vector>

#include "base/clock.h"
#include "events/reader.h"
#include "events/run_folder.h"

namespace tutti::events {

struct LiveOptions {
  enum class Mode { terminal, plain, quiet, json };
  Mode mode = Mode::plain;
  int width = 80;  // columns; no line of the view is longer, from 30 on
  bool color = false;
  std::int64_t every_steps = 10;  // of plain lines
};

// What is known by now. Times are by the clock of the view.
struct LiveState {
  std::int64_t step = 0, first_step = 0, total = 0;  // total 0: not known
  double total_seconds = 0;                          // of a run that a time limits; 0: not known
  double seconds_before = 0;                         // of these, spent before it was resumed
  double loss = 0, lr = 0, tokens_per_second = 0, mfu = 0;
  double validation_loss = -1;  // below 0: none yet
  double started = 0;           // of the first step seen
  std::deque<double> losses;
  std::vector<double> waits, steps;  // of each rank: seconds of the last step; 0: none yet
  std::vector<double> seen;          // of each rank: when it last said something
};

// The view's four lines, without newline: how far; the numbers; the loss so far; the workers. What
// does not fit `width` is left out, the least important first. Pure, for tests.
std::vector<std::string> render(const LiveState& state, int width, bool color, double now);
std::string plain_line(const LiveState& state, double now);
// Eight block heights over the values' range, at most `width` of them, each the mean of its share.
std::string sparkline(const std::deque<double>& values, std::size_t width);

// Not thread-safe. In quiet and json mode nothing is shown before finish().
class LiveView {
 public:
  // Shows what comes from now on, not what the files hold already.
  LiveView(const LiveOptions& options, const RunFolder& run, int workers, std::ostream& out,
           const Clock& clock);
  void tick();                        // looks for news; draws if there are
  void say(const std::string& line);  // above the view
  void finish(const Json& summary);   // the last words; with json, the summary object on a line

 private:
  void take(const Json& record, std::size_t rank);
  void take_scalars(const Json& record, std::size_t rank);
  void take_instant(const std::string& name, const Json& data);
  bool shows() const;
  void draw();
  void erase();

  LiveOptions options_;
  std::vector<Tail> tails_;
  std::ostream& out_;
  const Clock& clock_;
  LiveState state_;
  std::size_t drawn_ = 0;     // lines on the screen
  bool first_shown_ = false;  // of the plain lines
};

}  // namespace tutti::events
