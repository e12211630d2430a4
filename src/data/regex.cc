#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace tutti::data {
namespace {

// PCRE2's own \s has U+180E too, which is no white space since Unicode 6.3.
constexpr const char* white_space =
    "\\x{9}-\\x{d} "
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

std::string translate(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's')
      out += in_class ? white_space : str("[", white_space, "]");
    else if (escaped == 'S' && !in_class)
      out += str("[^", white_space, "]");
    else
      out += str('\\', escaped);
  }
  return out;
}

struct MatchData {
  pcre2_match_data* data = pcre2_match_data_create(4, nullptr);
  MatchData() = default;
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;
  ~MatchData() { pcre2_match_data_free(data); }
};

}  // namespace

Regex::Regex(const std::string& pattern) {
  const std::string ours = translate(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &offset, nullptr);
  if (!code) {
    unsigned char text[256] = {};
    pcre2_get_error_message(error, text, sizeof text);
    throw ConfigError(str("regular expression ", pattern, ": ", reinterpret_cast<char*>(text)));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  code_ =
      std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
}

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 128 && !std::isalnum(static_cast<unsigned char>(c)))
      pattern += '\\';
    pattern += c;
  }
  return Regex(pattern);
}

void Regex::spans(std::string_view text, std::vector<Span>& out) const {
  thread_local MatchData match;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t done = 0, at = 0;
  std::uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  while (at < text.size()) {
    const int rc = pcre2_match(code, subject, text.size(), at, options, match.data, nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      unsigned char what[256] = {};
      pcre2_get_error_message(rc, what, sizeof what);
      throw WorldError(
          str("the tokenizer's pattern failed at byte ", at, ": ", reinterpret_cast<char*>(what)));
    }
    const PCRE2_SIZE* where = pcre2_get_ovector_pointer(match.data);
    if (where[0] > done) out.push_back({done, where[0], false});
    out.push_back({where[0], where[1], true});
    done = at = where[1];
  }
  if (done < text.size()) out.push_back({done, text.size(), false});
}

std::string Regex::replace(std::string_view text, std::string_view by) const {
  std::vector<Span> parts;
  spans(text, parts);
  std::string out;
  for (const Span& part : parts)
    out += part.match ? by : text.substr(part.first, part.end - part.first);
  return out;
}

}  // namespace tutti::data
