#include "launch/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace tutti::launch {
namespace {

volatile std::sig_atomic_t arrived = 0;
int wake[2] = {-1, -1};

void on_signal(int) {
  const int saved = errno;
  arrived = arrived + 1;
  [[maybe_unused]] const auto written = ::write(wake[1], "", 1);
  errno = saved;
}

}  // namespace

SignalCatcher::SignalCatcher() {
  TUTTI_ASSERT(wake[0] < 0, "one catcher at a time");
  if (::pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) throw WorldError(str("pipe: ", errno_text()));
  arrived = 0;
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &old_int_);
  ::sigaction(SIGTERM, &action, &old_term_);
}

SignalCatcher::~SignalCatcher() {
  ::sigaction(SIGINT, &old_int_, nullptr);
  ::sigaction(SIGTERM, &old_term_, nullptr);
  ::close(wake[0]);
  ::close(wake[1]);
  wake[0] = wake[1] = -1;
}

int SignalCatcher::fd() const { return wake[0]; }

int SignalCatcher::count() {
  char bytes[16];
  while (::read(wake[0], bytes, sizeof bytes) > 0) {
  }
  return arrived;
}

}  // namespace tutti::launch
