#include "events/live.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "base/error.h"
#include "base/text.h"

namespace tutti::events {
namespace {

std::string number(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string eta(const LiveState& state, double now) {
  const double done = static_cast<double>(state.step - state.first_step);
  if (state.total <= 0 || done < 1) return "";
  return human_seconds((now - state.started) / done *
                       static_cast<double>(state.total - state.step));
}

std::string painted(const std::string& text, const char* code, bool color) {
  return color ? str("\x1b[", code, "m", text, "\x1b[0m") : text;
}

}  // namespace

std::string sparkline(const std::deque<double>& values, std::size_t width) {
  static const char* const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty() || width == 0) return "";
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  std::string line;
  const std::size_t points = std::min(width, values.size());
  for (std::size_t i = 0; i < points; ++i) {
    const double value = values[i * values.size() / points];
    const double part = *high > *low ? (value - *low) / (*high - *low) : 0;
    line += blocks[static_cast<int>(std::clamp(part * 7.999, 0.0, 7.0))];
  }
  return line;
}

std::string plain_line(const LiveState& state, double now) {
  std::string line = str("step ", state.step);
  if (state.total > 0) line += str("/", state.total);
  line += number("  loss %.4f", state.loss);
  if (state.validation_loss >= 0) line += number("  validation %.4f", state.validation_loss);
  line += number("  lr %.3g", state.lr) + "  " + human_count(state.tokens_per_second) + " tokens/s";
  if (state.mfu > 0) line += number("  mfu %.0f%%", 100 * state.mfu);
  const std::string left = eta(state, now);
  if (!left.empty()) line += "  left " + left;
  return line;
}

std::vector<std::string> render(const LiveState& state, int width, bool color, double now) {
  std::vector<std::string> lines;
  const std::size_t bar = static_cast<std::size_t>(std::clamp(width - 32, 8, 60));
  const double share =
      state.total > 0 ? static_cast<double>(state.step) / static_cast<double>(state.total) : 0;
  const auto full = static_cast<std::size_t>(share * static_cast<double>(bar));
  std::string filled, rest;
  for (std::size_t i = 0; i < bar; ++i) (i < full ? filled : rest) += i < full ? "━" : "─";
  std::string head =
      painted(filled, "36", color) + painted(rest, "90", color) + str(" ", state.step);
  if (state.total > 0) head += str("/", state.total) + number(" %.0f%%", 100 * share);
  const std::string left = eta(state, now);
  if (!left.empty() && width >= 60) head += "  " + left;
  lines.push_back(head);
  std::string numbers = painted(number("loss %.4f", state.loss), "1", color);
  if (state.validation_loss >= 0) numbers += number("  validation %.4f", state.validation_loss);
  if (width >= 60) numbers += number("  lr %.3g", state.lr);
  numbers += "  " + human_count(state.tokens_per_second) + " tokens/s";
  if (state.mfu > 0 && width >= 70) numbers += number("  mfu %.0f%%", 100 * state.mfu);
  lines.push_back(numbers);
  lines.push_back(painted(sparkline(state.losses, bar), "36", color));
  std::string workers;
  for (std::size_t rank = 0; rank < state.steps.size(); ++rank) {
    const double busy = state.steps[rank] > 0 ? 1 - state.waits[rank] / state.steps[rank] : 0;
    const std::string item =
        str(rank ? "  " : "", "rank ", rank) + number(" %.0f%% busy", 100 * busy);
    if (workers.size() + item.size() > static_cast<std::size_t>(width)) break;
    workers += item;
  }
  lines.push_back(painted(workers, "90", color));
  return lines;
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
}

void LiveView::take(const Json& record, std::size_t rank) {
  const std::string kind = record.value("kind", "");
  const auto read = [&](const char* key, double& into) {
    if (record.contains(key) && record[key].is_number()) into = record[key].get<double>();
  };
  if (kind == "scalars") {
    read("step_seconds", state_.steps[rank]);
    read("wait_seconds", state_.waits[rank]);
    if (rank != 0) return;
    state_.step = record["step"].get<std::int64_t>();
    read("loss", state_.loss);
    read("lr", state_.lr);
    read("tokens_per_second", state_.tokens_per_second);
    read("mfu", state_.mfu);
    read("validation_loss", state_.validation_loss);
    if (!record.contains("loss")) return;
    state_.losses.push_back(state_.loss);
    if (state_.losses.size() > 4096) state_.losses.pop_front();
    if (options_.mode == LiveOptions::Mode::plain && state_.step % options_.every_steps == 0)
      out_ << plain_line(state_, clock_.now()) << std::endl;
    return;
  }
  if (rank != 0 || kind != "instant") return;
  const Json& data = record["data"];
  const std::string name = record.value("name", "");
  if (name == "start") {
    state_.first_step = data.value("first_step", std::int64_t{0});
    state_.total = data.value("total_steps", std::int64_t{0});
    state_.started = clock_.now();
    say(str(human_count(data.value("parameters", 0.0)), " parameters, ", data.value("workers", 1),
            " workers x ", data.value("threads", 1), " threads, ", data.value("transport", ""),
            ", ", data.value("precision", "")));
  } else if (name == "warning") {
    say(str("step ", state_.step, ": ", data.value("text", "")));
  }
}

void LiveView::tick() {
  if (options_.mode == LiveOptions::Mode::quiet || options_.mode == LiveOptions::Mode::json) return;
  bool news = false;
  for (std::size_t rank = 0; rank < tails_.size(); ++rank)
    for (const Json& record : tails_[rank].poll()) {
      take(record, rank);
      news = true;
    }
  if (news && options_.mode == LiveOptions::Mode::terminal) draw();
}

void LiveView::draw() {
  if (state_.step == 0) return;
  erase();
  const auto lines = render(state_, options_.width, options_.color, clock_.now());
  for (const std::string& line : lines) out_ << line << "\n";
  drawn_ = lines.size();
  out_.flush();
}

void LiveView::erase() {
  if (drawn_) out_ << "\x1b[" << drawn_ << "A\x1b[J";
  drawn_ = 0;
}

void LiveView::say(const std::string& line) {
  if (options_.mode == LiveOptions::Mode::quiet || options_.mode == LiveOptions::Mode::json) return;
  erase();
  out_ << line << std::endl;
  if (options_.mode == LiveOptions::Mode::terminal) draw();
}

void LiveView::finish(const Json& summary) {
  tick();
  if (options_.mode == LiveOptions::Mode::json) out_ << summary.dump() << std::endl;
}

}  // namespace tutti::events
