#include "comm/socket_alarm.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/clock.h"
#include "base/error.h"

namespace tutti::comm {
namespace {

timespec span_of(double seconds) {
  const double whole = std::floor(seconds);
  return {static_cast<time_t>(whole), static_cast<long>((seconds - whole) * 1e9)};
}

}  // namespace

Alarm::Alarm(std::vector<Connection> connections) : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (bell_.get() < 0) throw WorldError(str("cannot make an eventfd: ", errno_text()));
  for (Connection& connection : connections) {
    if (connection.socket.get() < 0) {
      lines_.emplace_back();
      continue;
    }
    auto line = std::make_unique<Line>(std::move(connection));
    line->link.queue_in(&line->in.bytes, sizeof line->in.bytes);
    lines_.push_back(std::move(line));
  }
}

void Alarm::raise(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (raised_) return;
  reason_ = reason.substr(0, longest);
  out_.bytes = static_cast<std::uint32_t>(reason_.size());
  std::ranges::copy(reason_, out_.text.begin());
  raised_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(bell_.get(), &one, sizeof one);
  for (const auto& line : lines_)
    if (line && line->open) tell(*line);
}

// The first that goes this way: the socket has room for it.
void Alarm::tell(Line& line) {
  try {
    line.link.queue_out(&out_.bytes, sizeof out_.bytes);
    line.link.queue_out(out_.text.data(), out_.bytes);
    line.link.push();
  } catch (const LinkLost&) {
    line.open = false;
  }
}

std::string Alarm::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void Alarm::wait(std::vector<pollfd>& set, double seconds) {
  const std::size_t length = set.size();
  set.push_back({bell_.get(), POLLIN, 0});
  for (const auto& line : lines_)
    if (line && line->open) set.push_back({line->link.socket(), POLLIN, 0});
  const timespec span = span_of(std::max(seconds, 0.0));
  const int ready = ppoll(set.data(), set.size(), &span, nullptr);
  if (ready < 0) std::ranges::for_each(set, [](pollfd& entry) { entry.revents = 0; });
  const bool words = std::any_of(set.begin() + static_cast<std::ptrdiff_t>(length) + 1, set.end(),
                                 [](const pollfd& entry) { return entry.revents != 0; });
  set.resize(length);
  if (words) listen();
}

void Alarm::listen() {
  std::string said;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& line : lines_)
      if (line && line->open && said.empty()) said = heard(*line);
  }
  if (!said.empty()) raise(said);
}

std::string Alarm::heard(Line& line) {
  try {
    line.link.pull();
    if (line.link.received() == sizeof line.in.bytes && !line.link.receiving()) {
      if (line.in.bytes == 0 || line.in.bytes > longest) throw LinkLost("sent no word");
      line.link.queue_in(line.in.text.data(), line.in.bytes);
      line.link.pull();
    }
  } catch (const LinkLost&) {
    line.open = false;
    return "";
  }
  return line.link.receiving() ? "" : std::string(line.in.text.data(), line.in.bytes);
}

void Alarm::hear_last_word(int peer) {
  constexpr double patience = 0.2;
  const double until = real_clock().now() + patience;
  const Line& line = *lines_[static_cast<std::size_t>(peer)];
  std::vector<pollfd> nothing;
  for (double left = patience; line.open && !raised() && left > 0;
       left = until - real_clock().now())
    wait(nothing, left);
}

}  // namespace tutti::comm
