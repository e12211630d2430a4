// What fields.cc builds its table with: one maker a kind of field. `at` takes a Recipe, const or
// not, to the member.
#pragma once
#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "recipe/fields.h"
#include "recipe/quantity.h"

namespace tutti::recipe::makers {

using Strings = std::vector<std::string>;

// `convert` turns text into an optional value.
template <class At, class Convert, class Show>
Field make(const char* name, Kind kind, const char* doc, std::string rule, At at,
           const Convert& convert, Show show) {
  Field field{name, kind, doc, std::move(rule), {}, {}, {}, {}, {}};
  field.set = [at, convert](Recipe& recipe, const std::string& text) {
    const auto value = convert(text);
    if (value) at(recipe) = static_cast<std::remove_cvref_t<decltype(at(recipe))>>(*value);
    return value.has_value();
  };
  field.get = [at, show](const Recipe& recipe) -> std::string { return show(at(recipe)); };
  return field;
}

inline constexpr auto itself = [](const std::string& text) { return text; };

template <class At>
Field text(const char* name, const char* doc, At at) {
  return make(
      name, Kind::text, doc, "must be text", at,
      [](const std::string& value) { return std::optional(value); }, itself);
}

template <class At>
Field file_name(const char* name, const char* doc, At at) {
  const auto convert = [](const std::string& value) -> std::optional<std::string> {
    const bool plain = std::none_of(value.begin(), value.end(), [](char c) {
      return c == '/' || (static_cast<unsigned char>(c) < 0x20);
    });
    if (value.empty() || value.size() > 100 || value[0] == '.' || !plain) return std::nullopt;
    return value;
  };
  return make(name, Kind::text, doc,
              "must be a name of 1 to 100 bytes without '/', not starting with '.'", at, convert,
              itself);
}

// "even", or whole numbers with blanks between.
template <class At>
Field cut(const char* name, const char* doc, At at) {
  const auto convert = [](const std::string& value) -> std::optional<std::string> {
    std::istringstream words(value);
    std::string word, clean;
    while (words >> word) {
      const auto layers = parse_count(word);
      if (value != "even" && (!layers || *layers < 0 || *layers > 10000)) return std::nullopt;
      clean += (clean.empty() ? "" : " ") + word;
    }
    return clean.empty() ? std::nullopt : std::optional(clean);
  };
  return make(name, Kind::text, doc, "must be even, or the layers of each stage, like 3 2 2 1", at,
              convert, itself);
}

// One of the words, or a whole number.
template <class At>
Field word_or_count(const char* name, const char* doc, const Strings& words, At at) {
  const auto convert = [words](const std::string& value) -> std::optional<std::string> {
    if (std::find(words.begin(), words.end(), value) != words.end()) return value;
    const auto number = parse_count(value);
    if (!number || *number < 0 || *number > 10000) return std::nullopt;
    return std::to_string(*number);
  };
  return make(name, Kind::text, doc,
              "must be one of " + join(words, ", ") + ", or a whole number from 0 to 10000", at,
              convert, itself);
}

template <class At>
Field choice(const char* name, const char* doc, Strings choices, At at) {
  const auto convert = [choices](const std::string& value) -> std::optional<std::string> {
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) return std::nullopt;
    return value;
  };
  std::string rule = choices.size() == 1 ? "must be " : "must be one of ";
  Field field = make(name, Kind::choice, doc, rule + join(choices, ", "), at, convert, itself);
  field.choices = std::move(choices);
  return field;
}

// A choice to which programs add names of their own (add_engine).
template <class At>
Field engine(const char* name, const char* doc, const Strings& names, At at) {
  Field field = choice(name, doc, names, at);
  field.set = [at, name](Recipe& recipe, const std::string& value) {
    const Strings& known = find_field(name)->choices;
    if (std::find(known.begin(), known.end(), value) == known.end()) return false;
    at(recipe) = value;
    return true;
  };
  return field;
}

// Counts, sizes and numbers: a number within limits.
template <class At, class Parse, class Show>
Field limited(const char* name, Kind kind, const char* doc, const char* what, const Limits& limits,
              At at, Parse parse, Show show) {
  const auto convert = [limits, parse](const std::string& text) {
    auto value = parse(text);
    if (value && !limits.hold(static_cast<double>(*value))) value.reset();
    return value;
  };
  Field field =
      make(name, kind, doc, str("must be a ", what, " ", limits.text()), at, convert, show);
  field.limits = limits;
  return field;
}

const auto plainly = [](auto value) { return std::to_string(value); };

template <class At>
Field count(const char* name, const char* doc, const Limits& limits, At at) {
  return limited(name, Kind::count, doc, "whole number", limits, at, parse_count, plainly);
}

// auto is 0.
template <class At>
Field auto_or_count(const char* name, const char* doc, const Limits& limits, At at) {
  Field field = count(name, doc, limits, at);
  field.rule += ", or auto";
  field.choices = {"auto"};
  field.set = [at, set = field.set](Recipe& recipe, const std::string& text) {
    if (text == "auto") at(recipe) = 0;
    return text == "auto" || set(recipe, text);
  };
  field.get = [at](const Recipe& recipe) -> std::string {
    return at(recipe) == 0 ? "auto" : std::to_string(at(recipe));
  };
  return field;
}

template <class At>
Field bytes(const char* name, const char* doc, const Limits& limits, At at) {
  return limited(name, Kind::bytes, doc, "size in bytes (like 64kb, 1.5gb)", limits, at,
                 parse_bytes, plainly);
}

template <class At>
Field number(const char* name, const char* doc, const Limits& limits, At at) {
  return limited(name, Kind::number, doc, "number", limits, at, parse_number, number_text);
}

// All 64 bits.
template <class At>
Field seed(const char* name, const char* doc, At at) {
  const auto parse = [](const std::string& text) -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  };
  return limited(name, Kind::count, doc, "whole number (64 bits)", Limits{0, {}, {}, {}}, at, parse,
                 plainly);
}

template <class At>
Field onoff(const char* name, const char* doc, At at) {
  return make(name, Kind::onoff, doc, "must be on or off", at, parse_switch,
              [](bool value) { return value ? "on" : "off"; });
}

template <class At>
Field duration(const char* name, const char* doc, At at) {
  return make(name, Kind::duration, doc,
              "must be an amount with a unit (like 2000 steps, 10m tokens, 3 epochs, 90s, 1h)", at,
              parse_duration, [](const Duration& value) { return to_text(value); });
}

template <class At>
Field source_list(const char* name, const char* doc, At at) {
  Field field{name, Kind::sources,
              doc,  "must be a path or a list of paths or {path, weight}",
              {},   {},
              {},   {},
              {}};
  field.sources = [at](Recipe& recipe) -> std::vector<Source>& { return at(recipe); };
  return field;
}

}  // namespace tutti::recipe::makers
