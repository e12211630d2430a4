#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/error.h"

namespace tutti {
namespace {

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("tutti",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S %l: %v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info,
                                                  spdlog::level::warn, spdlog::level::err,
                                                  spdlog::level::off};
  logger().set_level(levels[static_cast<std::size_t>(level)]);
}

void set_log_rank(int rank) {
  logger().set_pattern(rank < 0 ? "%H:%M:%S %l: %v" : str("%H:%M:%S rank ", rank, " %l: %v"));
}

void log_debug(const std::string& text) { logger().log(spdlog::level::debug, text); }
void log_info(const std::string& text) { logger().log(spdlog::level::info, text); }
void log_warning(const std::string& text) { logger().log(spdlog::level::warn, text); }
void log_error(const std::string& text) { logger().log(spdlog::level::err, text); }

}  // namespace tutti
