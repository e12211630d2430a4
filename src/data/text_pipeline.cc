#include "data/text_pipeline.h"

#include "base/error.h"
#include "data/regex.h"
#include "data/unicode.h"

namespace tutti::data {

using Part = nlohmann::json;

const char* const gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const qwen_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

[[noreturn]] void unsupported(const char* kind, const std::string& what) {
  throw ConfigError(str("tokenizer.json: ", kind, " ", what, " is not supported"));
}

Regex pattern_of(const Part& part) {
  const Part& pattern = part.at("pattern");
  if (pattern.contains("Regex")) return Regex(pattern.at("Regex").get<std::string>());
  return Regex::literal(pattern.at("String").get<std::string>());
}

Normalizer replace_normalizer(const Part& part) {
  return [regex = pattern_of(part), by = part.at("content").get<std::string>()](
             std::string_view text) { return regex.replace(text, by); };
}

std::string strip(std::string_view text, bool left, bool right) {
  std::size_t length = 0;
  while (left && !text.empty() && is_white_space(decode_utf8(text, 0, length)))
    text.remove_prefix(length);
  while (right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_white_space(decode_utf8(text, at, length))) break;
    text.remove_suffix(text.size() - at);
  }
  return std::string(text);
}

}  // namespace

Normalizer make_normalizer(const Part& part) {
  if (part.is_null()) return {};
  const std::string type = part.at("type");
  const auto form = [](NormalForm which) {
    return [which](std::string_view text) { return normalize(text, which); };
  };
  if (type == "NFC") return form(NormalForm::nfc);
  if (type == "NFD") return form(NormalForm::nfd);
  if (type == "NFKC") return form(NormalForm::nfkc);
  if (type == "NFKD") return form(NormalForm::nfkd);
  if (type == "Replace") return replace_normalizer(part);
  if (type == "Prepend")
    return [prefix = part.at("prepend").get<std::string>()](std::string_view text) {
      return text.empty() ? std::string() : prefix + std::string(text);
    };
  if (type == "Strip")
    return [left = part.at("strip_left").get<bool>(), right = part.at("strip_right").get<bool>()](
               std::string_view text) { return strip(text, left, right); };
  if (type != "Sequence") unsupported("normalizer", type);
  std::vector<Normalizer> steps;
  for (const Part& step : part.at("normalizers")) steps.push_back(make_normalizer(step));
  return [steps](std::string_view text) {
    std::string value(text);
    for (const Normalizer& step : steps) value = step(value);
    return value;
  };
}

namespace {

enum class Behavior { isolated, removed, contiguous, with_previous, with_next };

Behavior behavior_of(const std::string& name) {
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Removed") return Behavior::removed;
  if (name == "Contiguous") return Behavior::contiguous;
  if (name == "MergedWithPrevious") return Behavior::with_previous;
  if (name == "MergedWithNext") return Behavior::with_next;
  unsupported("split behavior", name);
}

// Joins or drops spans as the behavior says.
void settle(std::vector<Span>& spans, Behavior behavior) {
  std::vector<Span> out;
  bool previous = false;
  for (const Span& span : spans) {
    const bool join =
        !out.empty() && ((behavior == Behavior::contiguous && span.match == previous) ||
                         (behavior == Behavior::with_previous && span.match && !previous) ||
                         (behavior == Behavior::with_next && !span.match && previous));
    if (join)
      out.back().end = span.end;
    else if (behavior != Behavior::removed || !span.match)
      out.push_back(span);
    previous = span.match;
  }
  spans = std::move(out);
}

PreTokenizer splitter(Regex regex, Behavior behavior, bool invert) {
  return [regex = std::move(regex), behavior, invert](Pieces& pieces) {
    std::vector<std::string_view> out;
    std::vector<Span> spans;
    for (const std::string_view piece : pieces.views) {
      spans.clear();
      regex.spans(piece, spans);
      if (invert)
        for (Span& span : spans) span.match = !span.match;
      if (behavior != Behavior::isolated) settle(spans, behavior);
      for (const Span& span : spans) out.push_back(piece.substr(span.first, span.end - span.first));
    }
    pieces.views = std::move(out);
  };
}

void add_prefix_space(Pieces& pieces) {
  for (std::string_view& piece : pieces.views) {
    if (piece.empty() || piece.starts_with(' ')) continue;
    pieces.owned.push_back(" " + std::string(piece));
    piece = pieces.owned.back();
  }
}

PreTokenizer byte_level(const Part& part) {
  const bool prefix = part.value("add_prefix_space", true);
  PreTokenizer split;
  if (part.value("use_regex", true))
    split = splitter(Regex(gpt2_pattern), Behavior::isolated, false);
  return [prefix, split](Pieces& pieces) {
    if (prefix) add_prefix_space(pieces);
    if (split) split(pieces);
  };
}

PreTokenizer metaspace(const Part& part) {
  const std::string mark = part.value("replacement", "\xE2\x96\x81");
  const std::string scheme = part.value("prepend_scheme", "always");
  const Regex space = Regex::literal(" ");
  PreTokenizer split;
  if (part.value("split", true)) split = splitter(Regex::literal(mark), Behavior::with_next, false);
  return [=](Pieces& pieces) {
    for (std::size_t i = 0; i < pieces.views.size(); ++i) {
      std::string text = space.replace(pieces.views[i], mark);
      const bool wanted = scheme == "always" || (scheme == "first" && i == 0 && pieces.at_start);
      if (wanted && !text.starts_with(mark)) text.insert(0, mark);
      pieces.owned.push_back(std::move(text));
      pieces.views[i] = pieces.owned.back();
    }
    if (split) split(pieces);
  };
}

}  // namespace

PreTokenizer make_pre_tokenizer(const Part& part, bool* is_byte_level) {
  if (part.is_null()) return {};
  const std::string type = part.at("type");
  if (*is_byte_level) unsupported("pre-tokenizer after ByteLevel:", type);
  if (type == "ByteLevel") return *is_byte_level = true, byte_level(part);
  if (type == "Metaspace") return metaspace(part);
  if (type == "Split")
    return splitter(pattern_of(part), behavior_of(part.at("behavior")),
                    part.value("invert", false));
  if (type == "Digits")
    return splitter(
        Regex("\\p{N}"),
        part.value("individual_digits", false) ? Behavior::isolated : Behavior::contiguous, false);
  if (type == "Punctuation")
    return splitter(Regex("[\\p{P}!-/:-@\\[-`{-~]"),
                    behavior_of(part.value("behavior", "Isolated")), false);
  if (type == "WhitespaceSplit") return splitter(Regex("\\s"), Behavior::removed, false);
  if (type != "Sequence") unsupported("pre-tokenizer", type);
  std::vector<PreTokenizer> steps;
  for (const Part& step : part.at("pretokenizers"))
    steps.push_back(make_pre_tokenizer(step, is_byte_level));
  return [steps](Pieces& pieces) {
    for (const PreTokenizer& step : steps) step(pieces);
  };
}

}  // namespace tutti::data
