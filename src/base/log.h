// Lines for the person who watches, on standard error: "12:01:33 rank 1 warning: ...".
// (Measurements go to events/, not here.)
#pragma once
#include <string>

namespace tutti {

enum class LogLevel { debug, info, warning, error, off };

void set_log_level(LogLevel level);
// Put in front of each line; -1 for none.
void set_log_rank(int rank);

void log_debug(const std::string& text);
void log_info(const std::string& text);
void log_warning(const std::string& text);
void log_error(const std::string& text);

}  // namespace tutti
