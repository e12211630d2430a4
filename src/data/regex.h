// PCRE2 patterns over UTF-8 with Unicode classes, as tokenizers use them.
#pragma once
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

struct Span {
  std::size_t first, end;
  bool match;
};

// Immutable; threads may share it.
class Regex {
 public:
  // `\s` is Unicode's White_Space. ConfigError with the place if the pattern is wrong.
  explicit Regex(const std::string& pattern);
  // Matches exactly `text`.
  static Regex literal(std::string_view text);

  // All of `text` (valid UTF-8) as alternating unmatched and matched spans; no empty ones.
  void spans(std::string_view text, std::vector<Span>& out) const;
  std::string replace(std::string_view text, std::string_view by) const;

 private:
  std::shared_ptr<void> code_;
};

}  // namespace tutti::data
