// The three kinds of error (docs/errors.md), and str(), which builds their texts.
//
//   Our own bug      TUTTI_ASSERT: prints the place and a stack, aborts (exit code 70).
//   A wrong recipe   ConfigError: every violation at once, before any process starts (exit code 2).
//   The world        WorldError: a lost peer, a full disk, a timeout; caught at the step boundary
//                    and nowhere below it (exit code 1).
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti {

// All parts streamed into one string: str("rank ", 3, " of ", 4).
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  ((out << parts), ...);
  return out.str();
}

// What `tutti` returns to the shell.
enum ExitCode {
  exit_ok = 0,
  exit_world = 1,
  exit_config = 2,
  exit_differs = 3,  // tutti parity: the layout trains another model
  exit_bug = 70,
  exit_interrupted = 130
};

// One mistake of the user's. Empty parts are left out of the text.
struct Violation {
  std::string field;   // "optimizer.lr"
  std::string where;   // "recipes/a.yaml:12", "--set" or ""
  std::string value;   // as written: "fast"
  std::string rule;    // "must be a number above 0"
  std::string remedy;  // "did you mean 'lr'?"
};

// "recipes/a.yaml:12: optimizer.lr = fast: must be a number above 0; did you mean ...".
std::string to_text(const Violation& violation);

class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(const std::string& what) : std::runtime_error(what) {}
  // what() has one line a violation. `violations` must not be empty.
  explicit ConfigError(std::vector<Violation> violations);
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  std::vector<Violation> violations_;
};

class WorldError : public std::runtime_error {
 public:
  explicit WorldError(const std::string& what) : std::runtime_error(what) {}
};

// SIGINT or SIGTERM arrived and the work was put in order first (exit code 130).
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

// "No space left on device" for the current errno, or for `error`.
std::string errno_text();
std::string errno_text(int error);

[[noreturn]] void assert_failed(const char* condition, const char* file, int line,
                                const std::string& detail);

}  // namespace tutti

// Holds in every build. TUTTI_ASSERT(rank < size, "rank ", rank);
#define TUTTI_ASSERT(condition, ...)                                                     \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::tutti::assert_failed(#condition, __FILE__, __LINE__, ::tutti::str(__VA_ARGS__)); \
  } while (false)
