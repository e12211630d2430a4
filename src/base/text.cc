#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tutti {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i) text += separator;
    text += parts[i];
  }
  return text;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, (word.size() + 1) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

namespace {

std::string scaled(double value, double base, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (std::abs(value) >= base && unit + 1 < units.size()) value /= base, ++unit;
  char text[48];
  const int digits = unit == 0 || std::abs(value) >= 100 ? 0 : std::abs(value) >= 10 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f%s", digits, value, units[unit]);
  return text;
}

}  // namespace

std::string human_bytes(double bytes) {
  constexpr const char* units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(bytes, 1024, units);
}

std::string human_count(double count) {
  constexpr const char* units[] = {"", "K", "M", "B", "T"};
  return scaled(count, 1000, units);
}

std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1e-3)
    std::snprintf(text, sizeof text, seconds < 1e-5 ? "%.2f us" : "%.0f us", 1e6 * seconds);
  else if (seconds < 1)
    std::snprintf(text, sizeof text, "%.2f ms", 1e3 * seconds);
  else
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  return text;
}

std::string percent_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

std::string human_seconds(double seconds) {
  char text[48];
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (seconds < 9.95)
    std::snprintf(text, sizeof text, "%.1fs", seconds);
  else if (whole < 60)
    std::snprintf(text, sizeof text, "%llds", whole);
  else if (whole < 3600)
    std::snprintf(text, sizeof text, "%lldm %02llds", whole / 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%lldh %02lldm", whole / 3600, whole / 60 % 60);
  return text;
}

bool valid_utf8(std::string_view text, std::size_t* bad_offset) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t i = 0;
  while (i < text.size()) {
    const unsigned lead = byte(i);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC2 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF5 ? 4
                                             : 0;
    bool good = length != 0 && i + length <= text.size();
    for (std::size_t k = 1; good && k < length; ++k) good = (byte(i + k) & 0xC0) == 0x80;
    if (good && length >= 3) {  // Overlong forms, surrogates and beyond U+10FFFF.
      const unsigned second = byte(i + 1);
      good = !(lead == 0xE0 && second < 0xA0) && !(lead == 0xED && second > 0x9F) &&
             !(lead == 0xF0 && second < 0x90) && !(lead == 0xF4 && second > 0x8F);
    }
    if (!good) {
      if (bad_offset) *bad_offset = i;
      return false;
    }
    i += length;
  }
  return true;
}

}  // namespace tutti
