// Small text helpers for messages: nearest spelling, numbers with units.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string_view trim(std::string_view text);

// Damerau-Levenshtein distance (insert, delete, replace, swap of neighbours).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `word`, or "" if none is near enough to be a misspelling of it.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// 1536 -> "1.50 KiB"; 12345678 -> "12.3M"; 3725 s -> "1h 02m".
std::string human_bytes(double bytes);
std::string human_count(double count);
std::string human_seconds(double seconds);
// Of short times and of shares: 12e-6 -> "12 us", 0.0123 -> "12.30 ms"; 0.123 -> "12.3%".
std::string time_text(double seconds);
std::string percent_text(double share);

// True if `text` is well-formed UTF-8; otherwise *bad_offset is the first offending byte.
bool valid_utf8(std::string_view text, std::size_t* bad_offset = nullptr);

}  // namespace tutti
