// SIGINT and SIGTERM as data: while one SignalCatcher lives they are counted instead of ending us,
// and fd() becomes readable.
#pragma once
#include <csignal>

namespace tutti::launch {

class SignalCatcher {  // at most one at a time
 public:
  SignalCatcher();
  ~SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;
  int fd() const;
  // How many arrived since construction; clears fd().
  int count();

 private:
  struct sigaction old_int_, old_term_;
};

}  // namespace tutti::launch
