// Quantities as people write them: "10m tokens", "2000 steps", "1h", "1.5gb".
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "recipe/recipe.h"

namespace tutti::recipe {

// "3 epochs", "2k steps", "10m tokens", "90s", "10m" (minutes), "1h", "2d"; "0" is off. nullopt for
// anything else, a negative amount, a bare number and an amount above 9e15 among it.
std::optional<Duration> parse_duration(std::string_view text);
std::string to_text(const Duration& duration);

// "1500000", "1.5m", "2k": a whole number with an optional factor k, m, b (1e3, 1e6, 1e9).
std::optional<std::int64_t> parse_count(std::string_view text);
// "64kb", "25mb", "1.5gb" in powers of 1024, or a bare number of bytes; parts of a byte are cut.
std::optional<std::int64_t> parse_bytes(std::string_view text);
std::optional<double> parse_number(std::string_view text);
// on, off, true, false, yes, no.
std::optional<bool> parse_switch(std::string_view text);

// The shortest text that parses back to the same value.
std::string number_text(double value);

// Steps that `duration` means for a run whose epoch has `epoch_samples` samples. Tokens and epochs
// round up. 0 for a duration in seconds: only the clock knows.
std::int64_t steps_of(const Duration& duration, std::int64_t epoch_samples,
                      std::int64_t global_batch, std::int64_t tokens_per_sample);

}  // namespace tutti::recipe
