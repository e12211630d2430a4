#include "recipe/quantity.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/text.h"

namespace tutti::recipe {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

struct Split {
  double number;
  std::string unit;  // lower case, trimmed
};

std::optional<Split> split_number(std::string_view text) {
  text = trim(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  const auto used = static_cast<std::size_t>(end - text.data());
  return Split{number, lower(trim(text.substr(used)))};
}

std::optional<double> factor_of(std::string_view unit) {
  if (unit.empty()) return 1;
  if (unit == "k") return 1e3;
  if (unit == "m") return 1e6;
  if (unit == "b") return 1e9;
  return std::nullopt;
}

constexpr double largest = 9e15;  // below it a double holds every whole number

std::optional<std::int64_t> whole(double value) {
  if (value != std::floor(value) || !(std::abs(value) <= largest)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

std::optional<Duration> bounded(double amount, Duration::Unit unit) {
  if (!(amount <= largest)) return std::nullopt;
  return Duration{amount, unit};
}

}  // namespace

std::optional<Duration> parse_duration(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts || parts->number < 0) return std::nullopt;
  std::string unit = parts->unit;
  if (unit.empty()) {
    if (parts->number == 0) return Duration{0, Duration::Unit::steps};
    return std::nullopt;
  }
  using Unit = Duration::Unit;
  constexpr std::pair<const char*, double> times[] = {
      {"s", 1},        {"sec", 1},     {"second", 1},   {"seconds", 1}, {"m", 60},
      {"min", 60},     {"minute", 60}, {"minutes", 60}, {"h", 3600},    {"hour", 3600},
      {"hours", 3600}, {"d", 86400},   {"day", 86400},  {"days", 86400}};
  for (const auto& [name, seconds] : times)
    if (unit == name) return bounded(parts->number * seconds, Unit::seconds);
  constexpr std::pair<const char*, Unit> counts[] = {
      {"steps", Unit::steps},  {"step", Unit::steps},    {"tokens", Unit::tokens},
      {"token", Unit::tokens}, {"epochs", Unit::epochs}, {"epoch", Unit::epochs}};
  for (const auto& [name, kind] : counts) {
    if (!unit.ends_with(name)) continue;
    const auto factor = factor_of(
        trim(std::string_view(unit).substr(0, unit.size() - std::string_view(name).size())));
    if (!factor) return std::nullopt;
    const double amount = parts->number * *factor;
    if (kind != Unit::epochs && !whole(amount)) return std::nullopt;
    return bounded(amount, kind);
  }
  return std::nullopt;
}

std::string number_text(double value) {
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

std::string to_text(const Duration& duration) {
  if (duration.amount == 0) return "0";
  if (duration.unit == Duration::Unit::seconds) return number_text(duration.amount) + "s";
  const char* units[] = {" steps", " tokens", " epochs"};
  const auto count = whole(duration.amount);
  return (count ? std::to_string(*count) : number_text(duration.amount)) +
         units[static_cast<std::size_t>(duration.unit)];
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts) return std::nullopt;
  const auto factor = factor_of(parts->unit);
  return factor ? whole(parts->number * *factor) : std::nullopt;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts) return std::nullopt;
  std::string unit = parts->unit;
  if (unit.ends_with("ib")) unit.erase(unit.size() - 2, 1);
  double factor = 1;
  if (unit == "kb")
    factor = 1024;
  else if (unit == "mb")
    factor = 1024.0 * 1024;
  else if (unit == "gb")
    factor = 1024.0 * 1024 * 1024;
  else if (!unit.empty() && unit != "b")
    return std::nullopt;
  return whole(std::floor(parts->number * factor));
}

std::optional<double> parse_number(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts || !parts->unit.empty()) return std::nullopt;
  return parts->number;
}

std::optional<bool> parse_switch(std::string_view text) {
  const std::string word = lower(trim(text));
  if (word == "on" || word == "true" || word == "yes") return true;
  if (word == "off" || word == "false" || word == "no") return false;
  return std::nullopt;
}

std::int64_t steps_of(const Duration& duration, std::int64_t epoch_samples,
                      std::int64_t global_batch, std::int64_t tokens_per_sample) {
  const double samples_a_step = static_cast<double>(global_batch);
  switch (duration.unit) {
    case Duration::Unit::steps:
      return static_cast<std::int64_t>(duration.amount);
    case Duration::Unit::tokens:
      return static_cast<std::int64_t>(
          std::ceil(duration.amount / (samples_a_step * static_cast<double>(tokens_per_sample))));
    case Duration::Unit::epochs:
      return static_cast<std::int64_t>(
          std::ceil(duration.amount * static_cast<double>(epoch_samples) / samples_a_step));
    default:
      return 0;
  }
}

}  // namespace tutti::recipe
