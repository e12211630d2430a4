#include "base/error.h"

#include <execinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace tutti {
namespace {

std::string to_text(const std::vector<Violation>& violations) {
  TUTTI_ASSERT(!violations.empty());
  std::string text;
  for (const Violation& violation : violations) {
    if (!text.empty()) text += '\n';
    text += to_text(violation);
  }
  return text;
}

}  // namespace

std::string to_text(const Violation& violation) {
  std::string text;
  if (!violation.where.empty()) text += violation.where + ": ";
  text += violation.field;
  if (!violation.value.empty()) text += " = " + violation.value;
  if (!violation.field.empty() || !violation.value.empty()) text += ": ";
  text += violation.rule;
  if (!violation.remedy.empty()) text += "; " + violation.remedy;
  return text;
}

ConfigError::ConfigError(std::vector<Violation> violations)
    : std::runtime_error(to_text(violations)), violations_(std::move(violations)) {}

std::string errno_text(int error) { return std::generic_category().message(error); }
std::string errno_text() { return errno_text(errno); }

void assert_failed(const char* condition, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr, "tutti: bug at %s:%d: %s does not hold%s%s\n", file, line, condition,
               detail.empty() ? "" : ": ", detail.c_str());
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  std::fflush(nullptr);
  std::_Exit(exit_bug);
}

}  // namespace tutti
