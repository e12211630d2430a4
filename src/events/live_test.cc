#include "events/live.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "events/writer.h"

namespace tutti::events {
namespace {

using Pair = std::pair<const char*, double>;
using Lines = std::vector<std::string>;

LiveState half_done() {
  LiveState state;
  state.step = 500;
  state.total = 1000;
  state.started = 100;
  state.loss = 2.12345;
  state.validation_loss = 2.25;
  state.lr = 3e-4;
  state.tokens_per_second = 79'012;
  state.mfu = 0.571;
  for (int i = 0; i < 500; ++i) state.losses.push_back(6 * std::exp(-i / 100.0) + 2.12345);
  state.steps = {0.1, 0.1};
  state.waits = {0.004, 0.012};
  state.seen = {150, 150};
  return state;
}

std::size_t columns(const std::string& line) {
  std::size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

TEST_CASE("live: the view at 120, 80 and 40 columns") {
  CHECK(render(half_done(), 120, false, 150) ==
        Lines{"━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━──────────────────────────────  step 500/1000   50%  "
              "50s left",
              "loss 2.1235  validation 2.2500  lr 0.0003  79.0K tokens/s  mfu 57%",
              "██▇▇▆▆▅▅▅▄▄▄▃▃▃▃▃▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  8.12 to 2.16",
              "rank 0 96% busy  rank 1 88% busy"});
  CHECK(render(half_done(), 80, false, 150)[0] ==
        "━━━━━━━━━━━━━━━━━━━━━━━━━────────────────────────  step 500/1000   50%  50s left");
  const Lines narrow = render(half_done(), 40, false, 150);
  CHECK(narrow[0] == "━━━━━────  step 500/1000   50%  50s left");
  CHECK(narrow[1] == "loss 2.1235  79.0K tokens/s  mfu 57%");
  CHECK(narrow[3] == "rank 0 96% busy  rank 1 88% busy");
}

TEST_CASE("live: no line is wider than the terminal, whatever is shown") {
  LiveState state = half_done();
  for (const int ranks : {1, 2, 64}) {
    state.steps.assign(static_cast<std::size_t>(ranks), 0.1);
    state.waits.assign(static_cast<std::size_t>(ranks), 0.01);
    state.seen.assign(static_cast<std::size_t>(ranks), 150);
    for (const std::int64_t total : {0, 1000, 1'000'000'000})
      for (int width = 30; width <= 200; ++width) {
        state.total = total;
        for (const std::string& line : render(state, width, false, 150))
          CHECK(columns(line) <= static_cast<std::size_t>(width));
      }
  }
}

TEST_CASE("live: colour adds escapes and nothing else") {
  const Lines plain = render(half_done(), 80, false, 150),
              painted = render(half_done(), 80, true, 150);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    std::string bare;
    for (std::size_t at = 0; at < painted[i].size(); ++at) {
      if (painted[i][at] != '\x1b')
        bare += painted[i][at];
      else
        at = painted[i].find('m', at);
    }
    CHECK(bare == plain[i]);
    CHECK(plain[i].find('\x1b') == std::string::npos);
  }
  CHECK(painted[0] != plain[0]);
}

TEST_CASE("live: a run that a time limits has a bar and an end too; one without either has none") {
  LiveState state = half_done();
  state.total = 0;
  state.total_seconds = 180;
  state.seconds_before = 40;
  CHECK(render(state, 80, false, 150)[0].ends_with("step 500   50%  1m 30s left"));
  state.total_seconds = 0;
  CHECK(render(state, 80, false, 150)[0] == "step 500");
}

TEST_CASE("live: workers that start, that fell silent, and too many to name") {
  LiveState state = half_done();
  state.steps[1] = 0;
  CHECK(render(state, 80, false, 150)[3] == "rank 0 96% busy  rank 1 starting");
  state = half_done();
  state.seen[1] = 100;
  CHECK(render(state, 80, false, 150)[3] == "rank 0 96% busy  rank 1 silent for 50s");
  state.steps.assign(64, 0.1);
  state.waits.assign(64, 0.01);
  state.seen.assign(64, 150);
  state.waits[7] = 0.05;
  CHECK(render(state, 80, false, 150)[3] == "64 workers 50% to 90% busy");
  state.seen[9] = 0;
  CHECK(render(state, 80, false, 150)[3] == "64 workers 50% to 90% busy  rank 9 silent for 2m 30s");
}

TEST_CASE("live: sparkline") {
  CHECK(sparkline({}, 10) == "");
  CHECK(sparkline({1, 2}, 0) == "");
  CHECK(sparkline({5, 5, 5}, 10) == "▁▁▁");
  CHECK(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8) == "▁▂▃▄▅▆▇█");
  CHECK(sparkline({0, 2, 9, 7}, 2) == "▁█");
}

void write_run(const RunFolder& run, std::int64_t first, std::int64_t last) {
  for (int rank = 0; rank < 2; ++rank) {
    Writer writer(run.events(rank), rank);
    if (rank == 0 && first == 1)
      writer.instant("start", 0,
                     {{"first_step", 0},
                      {"total_steps", 25},
                      {"parameters", 10'650'000},
                      {"threads", 1},
                      {"transport", "memory"},
                      {"precision", "fp32"}});
    for (std::int64_t step = first; step <= last; ++step) {
      const std::array values = {Pair{"step_seconds", 0.1}, Pair{"exposed_seconds", 0.01},
                                 Pair{"loss", 3.0}, Pair{"lr", 0.001},
                                 Pair{"tokens_per_second", 5000.0}};
      writer.scalars(step, std::span(values).first(rank == 0 ? 5 : 2));
    }
    if (rank == 0 && last == 25) writer.instant("warning", 25, {{"text", "update skipped"}});
  }
}

struct Shown {
  TempFolder folder;
  RunFolder run = create_run(folder.path() / "run");
  ManualClock clock;
  std::ostringstream out;

  std::string with(LiveOptions::Mode mode) {
    LiveOptions options;
    options.mode = mode;
    LiveView view(options, run, 2, out, clock);
    view.tick();
    write_run(run, 1, 1);
    view.tick();
    clock.sleep(2.4);
    write_run(run, 2, 25);
    view.tick();
    view.finish({{"steps", 25}, {"loss", 3.0}});
    return out.str();
  }
};

TEST_CASE("live: plain lines: the first step, every tenth, the last, and warnings") {
  CHECK(Shown().with(LiveOptions::Mode::plain) ==
        "10.7M parameters, 2 workers x 1 threads, memory, fp32\n"
        "step 1/25  loss 3.0000  lr 0.001  5.00K tokens/s\n"
        "step 10/25  loss 3.0000  lr 0.001  5.00K tokens/s  3.6s left\n"
        "step 20/25  loss 3.0000  lr 0.001  5.00K tokens/s  0.6s left\n"
        "step 25/25  loss 3.0000  lr 0.001  5.00K tokens/s\n"
        "step 25: update skipped\n");
}

TEST_CASE("live: quiet says nothing, json one object") {
  CHECK(Shown().with(LiveOptions::Mode::quiet) == "");
  CHECK(Shown().with(LiveOptions::Mode::json) == "{\"steps\":25,\"loss\":3.0}\n");
}

TEST_CASE("live: a terminal is drawn in place") {
  const std::string text = Shown().with(LiveOptions::Mode::terminal);
  CHECK(text.starts_with("10.7M parameters, 2 workers x 1 threads, memory, fp32\n\x1b[?7l"));
  CHECK(text.find("\x1b[4A") != std::string::npos);
  CHECK(text.find("step 25: update skipped\n") != std::string::npos);
  CHECK(text.ends_with("busy\n\x1b[?7h"));
}

TEST_CASE("live: a second picture goes over the first; a resumed run shows nothing of before") {
  Shown shown;
  write_run(shown.run, 1, 7);
  LiveOptions options;
  options.mode = LiveOptions::Mode::terminal;
  LiveView view(options, shown.run, 2, shown.out, shown.clock);
  view.tick();
  CHECK(shown.out.str().empty());
  write_run(shown.run, 8, 8);
  view.tick();
  CHECK(shown.out.str().find("\x1b[4A") == std::string::npos);
  write_run(shown.run, 9, 9);
  view.tick();
  CHECK(shown.out.str().find("\x1b[?7l\x1b[4A\x1b[K") != std::string::npos);
}

// To look at: TUTTI_SHOW_LIVE=1 events_test -tc='live: shown*', in a terminal.
TEST_CASE("live: shown to a person") {
  if (!std::getenv("TUTTI_SHOW_LIVE")) return;
  const TempFolder folder;
  const RunFolder run = create_run(folder.path() / "run");
  LiveOptions options;
  options.mode = LiveOptions::Mode::terminal;
  options.color = !std::getenv("NO_COLOR");
  if (const char* width = std::getenv("COLUMNS")) options.width = std::atoi(width);
  LiveView view(options, run, 2, std::cout, real_clock());
  Writer first(run.events(0), 0), second(run.events(1), 1);
  first.instant("start", 0,
                {{"first_step", 0},
                 {"total_steps", 150},
                 {"parameters", 10'650'000},
                 {"threads", 1},
                 {"transport", "memory"},
                 {"precision", "fp32"}});
  for (std::int64_t step = 1; step <= 150; ++step) {
    const double loss = 1.4 + 4 * std::exp(-static_cast<double>(step) / 40);
    const std::array values = {
        Pair{"step_seconds", 0.05}, Pair{"exposed_seconds", 0.004},      Pair{"loss", loss},
        Pair{"lr", 3e-4},           Pair{"tokens_per_second", 79'000.0}, Pair{"mfu", 0.57}};
    first.scalars(step, values);
    second.scalars(step, std::span(values).first(2));
    if (step % 50 == 0) first.scalars(step, std::array{Pair{"validation_loss", loss + 0.1}});
    if (step == 70)
      first.instant("warning", step, {{"text", "update skipped: layers.0 is not finite"}});
    real_clock().sleep(0.05);
    view.tick();
  }
  first.flush();
  view.finish({});
}

}  // namespace
}  // namespace tutti::events
