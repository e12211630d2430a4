#include "events/live.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <ostream>

#include "base/error.h"
#include "base/text.h"

namespace tutti::events {
namespace {

constexpr std::size_t most_losses = 4096;
constexpr double silence = 10;  // seconds without a word before a worker is called silent

std::string number(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Columns on a terminal: code points, of text without escapes or wide characters.
std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// A part of a line. Room goes to the parts of lowest `rank` first; the first of them always stays.
struct Part {
  std::string text;
  int rank = 0;
  const char* paint = "";
};

std::string painted(const std::string& text, const char* code, bool color) {
  return color && *code && !text.empty() ? str("\x1b[", code, "m", text, "\x1b[0m") : text;
}

std::string fitted(const std::vector<Part>& parts, std::size_t width, bool color) {
  std::vector<std::size_t> order(parts.size()), kept;
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(parts[a].rank, a) < std::pair(parts[b].rank, b);
  });
  std::size_t used = 0;
  for (const std::size_t i : order) {
    const std::size_t more = columns(parts[i].text) + (kept.empty() ? 0 : 2);
    if (!kept.empty() && used + more > width) continue;
    used += more;
    kept.push_back(i);
  }
  std::sort(kept.begin(), kept.end());
  std::string line;
  for (const std::size_t i : kept)
    line += (line.empty() ? "" : "  ") + painted(parts[i].text, parts[i].paint, color);
  return line;
}

constexpr double least_done = 3;  // steps that say how long the others take: the first is slow

// The share of the run that is done, below 0 if it is not known, and the seconds that are left.
struct Progress {
  double share = -1, left = -1;
};

Progress progress_of(const LiveState& state, double now) {
  const double spent = now - state.started;
  if (state.total > 0) {
    const auto done = static_cast<double>(state.step - state.first_step);
    const auto rest = static_cast<double>(std::max<std::int64_t>(0, state.total - state.step));
    return {
        std::clamp(static_cast<double>(state.step) / static_cast<double>(state.total), 0.0, 1.0),
        done >= least_done ? spent / done * rest : -1};
  }
  if (state.total_seconds <= 0) return {};
  const double used = state.seconds_before + spent;
  return {std::clamp(used / state.total_seconds, 0.0, 1.0),
          std::max(0.0, state.total_seconds - used)};
}

std::vector<Part> numbers(const LiveState& state) {
  std::vector<Part> parts = {{number("loss %.4f", state.loss), 0, "1"}};
  if (state.validation_loss >= 0)
    parts.push_back({number("validation %.4f", state.validation_loss), 2});
  parts.push_back({number("lr %.3g", state.lr), 4});
  parts.push_back({human_count(state.tokens_per_second) + " tokens/s", 1});
  if (state.mfu > 0) parts.push_back({number("mfu %.0f%%", 100 * state.mfu), 3});
  return parts;
}

std::string head_line(const LiveState& state, std::size_t width, bool color, double now) {
  const Progress progress = progress_of(state, now);
  std::string step = str("step ", state.step);
  if (state.total > 0) step += str("/", state.total);
  std::vector<Part> parts = {{step, 0}};
  if (progress.share >= 0) parts.push_back({number("%3.0f%%", 100 * progress.share), 1});
  if (progress.left > 0) parts.push_back({human_seconds(progress.left) + " left", 2});
  std::string text = fitted(parts, width, false);
  const std::size_t room = std::min<std::size_t>(60, width - std::min(width, columns(text) + 2));
  if (progress.share < 0 || room < 8) return text;
  const auto full =
      static_cast<std::size_t>(std::lround(progress.share * static_cast<double>(room)));
  std::string filled, rest;
  for (std::size_t i = 0; i < room; ++i) (i < full ? filled : rest) += i < full ? "━" : "─";
  return painted(filled, "36", color) + painted(rest, "90", color) + "  " + text;
}

std::string loss_line(const LiveState& state, std::size_t width, bool color) {
  if (state.losses.empty()) return "";
  const std::string range =
      number("%.3g", state.losses.front()) + number(" to %.3g", state.losses.back());
  const std::size_t room = std::min<std::size_t>(60, width - std::min(width, range.size() + 2));
  return fitted({{sparkline(state.losses, room), 0, "36"}, {range, 1, "90"}}, width, color);
}

// "96% busy", "starting" or "silent for 12s".
std::string worker_state(const LiveState& state, std::size_t rank, double now) {
  if (state.steps[rank] <= 0) return "starting";
  if (now - state.seen[rank] > silence + 3 * state.steps[rank])
    return "silent for " + human_seconds(now - state.seen[rank]);
  return number("%.0f%% busy", 100 * (1 - state.waits[rank] / state.steps[rank]));
}

std::string workers_line(const LiveState& state, std::size_t width, bool color, double now) {
  std::vector<Part> parts;
  double least = 1, most = 0;
  std::size_t not_busy = 0, named = 0;
  for (std::size_t rank = 0; rank < state.steps.size(); ++rank) {
    const std::string what = worker_state(state, rank, now);
    parts.push_back({str("rank ", rank, " ", what), 0, "90"});
    if (!what.ends_with("busy") && ++not_busy == 1) named = rank;
    if (!what.ends_with("busy")) continue;
    const double busy = 1 - state.waits[rank] / state.steps[rank];
    least = std::min(least, busy);
    most = std::max(most, busy);
  }
  std::size_t sum = 0;
  for (const Part& part : parts) sum += columns(part.text) + (sum > 0 ? 2 : 0);
  if (sum <= width) return fitted(parts, width, color);
  std::string text = str(parts.size(), " workers");
  if (not_busy < parts.size())
    text += number(" %.0f%%", 100 * least) + number(" to %.0f%% busy", 100 * most);
  parts = {{text, 0, "90"}};
  if (not_busy > 0)
    parts.push_back({str("rank ", named, " ", worker_state(state, named, now)), 1, "33"});
  return fitted(parts, width, color);
}

}  // namespace

std::string sparkline(const std::deque<double>& values, std::size_t width) {
  static const char* const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t count = std::min(width, values.size());
  std::vector<double> means(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i * values.size() / count, end = (i + 1) * values.size() / count;
    for (std::size_t k = first; k < end; ++k)
      means[i] += values[k] / static_cast<double>(end - first);
  }
  if (means.empty()) return "";
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  std::string line;
  for (const double value : means) {
    const double part = *high > *low ? (value - *low) / (*high - *low) : 0;
    line += blocks[static_cast<int>(std::clamp(part * 7.999, 0.0, 7.0))];
  }
  return line;
}

std::string plain_line(const LiveState& state, double now) {
  std::string line = str("step ", state.step);
  if (state.total > 0) line += str("/", state.total);
  for (const Part& part : numbers(state)) line += "  " + part.text;
  const double left = progress_of(state, now).left;
  return left > 0 ? line + "  " + human_seconds(left) + " left" : line;
}

std::vector<std::string> render(const LiveState& state, int width, bool color, double now) {
  const auto room = static_cast<std::size_t>(std::max(20, width));
  return {head_line(state, room, color, now), fitted(numbers(state), room, color),
          loss_line(state, room, color), workers_line(state, room, color, now)};
}

LiveView::LiveView(const LiveOptions& options, const RunFolder& run, int workers, std::ostream& out,
                   const Clock& clock)
    : options_(options), out_(out), clock_(clock) {
  for (int rank = 0; rank < workers; ++rank) {
    tails_.emplace_back(run.events(rank));
    tails_.back().skip();
  }
  state_.waits.resize(tails_.size());
  state_.steps.resize(tails_.size());
  state_.seen.resize(tails_.size());
}

bool LiveView::shows() const {
  return options_.mode == LiveOptions::Mode::terminal || options_.mode == LiveOptions::Mode::plain;
}

void LiveView::take(const Json& record, std::size_t rank) {
  state_.seen[rank] = clock_.now();
  if (record["kind"] == "scalars") return take_scalars(record, rank);
  if (rank == 0 && record["kind"] == "instant")
    take_instant(record["name"].get<std::string>(), record["data"]);
}

void LiveView::take_scalars(const Json& record, std::size_t rank) {
  const auto read = [&](const char* key, double& into) {
    if (record.contains(key) && record[key].is_number()) into = record[key].get<double>();
  };
  read("step_seconds", state_.steps[rank]);
  read("exposed_seconds", state_.waits[rank]);
  if (rank != 0) return;
  state_.step = record["step"].get<std::int64_t>();
  read("loss", state_.loss);
  read("lr", state_.lr);
  read("tokens_per_second", state_.tokens_per_second);
  read("mfu", state_.mfu);
  read("validation_loss", state_.validation_loss);
  if (!record.contains("loss")) return;
  state_.losses.push_back(state_.loss);
  if (state_.losses.size() > most_losses) state_.losses.pop_front();
  if (options_.mode != LiveOptions::Mode::plain) return;
  const bool last = state_.total > 0 && state_.step == state_.total;
  if (first_shown_ && !last && state_.step % options_.every_steps != 0) return;
  first_shown_ = true;
  out_ << plain_line(state_, clock_.now()) << std::endl;
}

void LiveView::take_instant(const std::string& name, const Json& data) {
  const auto count = [&](const char* key) {
    return data.contains(key) && data[key].is_number() ? data[key].get<double>() : 0.0;
  };
  const auto text = [&](const char* key) {
    return data.contains(key) && data[key].is_string() ? data[key].get<std::string>() : "";
  };
  if (name == "warning") say(str("step ", state_.step, ": ", text("text")));
  if (name != "start") return;
  state_.first_step = static_cast<std::int64_t>(count("first_step"));
  state_.total = static_cast<std::int64_t>(count("total_steps"));
  state_.total_seconds = count("total_seconds");
  state_.seconds_before = count("seconds_before");
  state_.started = clock_.now();
  say(str(human_count(count("parameters")), " parameters, ", tails_.size(),
          tails_.size() == 1 ? " worker" : " workers", " x ", count("threads"), " threads, ",
          text("transport"), ", ", text("precision")));
}

void LiveView::tick() {
  if (!shows()) return;
  bool news = false;
  for (std::size_t rank = 0; rank < tails_.size(); ++rank)
    tails_[rank].poll([&](Json&& record) {
      take(record, rank);
      news = true;
    });
  if (news && options_.mode == LiveOptions::Mode::terminal) draw();
}

// Over the lines drawn before rather than after wiping them, so that nothing flickers; without
// automatic line breaks, so that a window made narrower cuts lines and does not fold them.
void LiveView::draw() {
  if (state_.step == 0) return;
  std::string text = "\x1b[?7l";
  if (drawn_ > 0) text += str("\x1b[", drawn_, "A");
  const auto lines = render(state_, options_.width, options_.color, clock_.now());
  for (const std::string& line : lines) text += "\x1b[K" + line + "\n";
  out_ << text << "\x1b[?7h" << std::flush;
  drawn_ = lines.size();
}

void LiveView::erase() {
  if (drawn_ > 0) out_ << "\x1b[" << drawn_ << "A\x1b[J";
  drawn_ = 0;
}

void LiveView::say(const std::string& line) {
  if (!shows()) return;
  erase();
  out_ << line << std::endl;
  if (options_.mode == LiveOptions::Mode::terminal) draw();
}

void LiveView::finish(const Json& summary) {
  tick();
  if (options_.mode == LiveOptions::Mode::json) out_ << summary.dump() << std::endl;
}

}  // namespace tutti::events
