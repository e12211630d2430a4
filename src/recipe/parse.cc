#include "recipe/parse.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/text.h"
#include "recipe/check.h"
#include "recipe/fields.h"
#include "recipe/quantity.h"
#include "recipe/suggest.h"

namespace tutti::recipe {
namespace {

std::string place(const std::string& origin, const YAML::Mark& mark) {
  return mark.is_null() ? origin : str(origin, ":", mark.line + 1);
}

// What stands there, for an error.
std::string shown(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar().empty() ? "\"\"" : node.Scalar();
  return node.IsNull() ? "nothing" : node.IsMap() ? "a map" : "a list";
}

// Notes only where a document starts.
class Starts : public YAML::EventHandler {
 public:
  YAML::Mark last;
  void OnDocumentStart(const YAML::Mark& mark) override { last = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// The text's only document. YAML::Load takes the first and ignores the rest; YAML::LoadAll does not
// end on some of what is no YAML (a lone comma, yaml-cpp 0.7), so the second is asked for just
// once.
YAML::Node load_one(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Starts starts;
  if (parser.HandleNextDocument(starts) && parser.HandleNextDocument(starts))
    throw YAML::ParserException(starts.last, "the recipe ended before this (a second document?)");
  return YAML::Load(text);
}

class Parser {
 public:
  // Reads `text` and, first, the files that it names by `base`. `chain` holds the files on the way.
  void read(const std::string& text, const std::string& origin, const fs::path& folder,
            std::vector<fs::path> chain) {
    std::size_t bad = 0;
    if (!valid_utf8(text, &bad)) {
      const auto line = 1 + std::count(text.begin(), text.begin() + std::ptrdiff_t(bad), '\n');
      add({"", str(origin, ":", line), "", str("is not UTF-8 at byte ", bad), "save it as UTF-8"});
      return;
    }
    YAML::Node root;
    try {
      root = load_one(text);
    } catch (const YAML::Exception& error) {
      add({"", place(origin, error.mark), "", "is not valid YAML: " + error.msg,
           "check indentation and quotes there"});
      return;
    }
    if (root.IsNull()) return;
    if (!root.IsMap()) {
      add({"", place(origin, root.Mark()), "", "must be a map of fields",
           "like duration: 100 steps"});
      return;
    }
    read_base(root, origin, folder, std::move(chain));
    ++layer_;
    walk(root, "", origin);
  }

  void override_with(const std::vector<std::string>& texts) {
    ++layer_;
    for (const std::string& text : texts) {
      const std::size_t equals = text.find('=');
      const std::string name(trim(text.substr(0, equals)));
      if (equals == std::string::npos || name.empty()) {
        add({"", "--set", text, "must have the form a.b=c", "like --set batch.global=16"});
        continue;
      }
      override_field(name, text.substr(equals + 1));
    }
  }

  Parsed finish(const fs::path& folder, Inputs inputs, const Rules& more) {
    const Where where = [this](const std::string& field) {
      const auto at = set_.find(field);
      return at == set_.end() ? std::string() : at->second.where;
    };
    settle_defaults();
    for (const Violation& found : contradictions(recipe_, where, bad_)) add(found);
    if (more)
      for (const Violation& found : more(recipe_, where, bad_)) add(found);
    for (const Violation& found : find_inputs(recipe_, inputs, folder, where)) add(found);
    if (!violations_.empty()) throw ConfigError(violations_);
    for (const Violation& note : without_effect(recipe_, where)) notes_.push_back(note);
    return {recipe_, notes_};
  }

  void add(Violation violation) { violations_.push_back(std::move(violation)); }

 private:
  // Defaults that follow from what was set: a model brings its tokenizer, a short run warms up
  // less.
  void settle_defaults() {
    const fs::path from = recipe_.model.from;
    std::error_code ignored;
    if (!from.empty() && !set_.contains("data.tokenizer") &&
        (fs::exists(from / "tokenizer.json", ignored) ||
         fs::exists(from / "tokenizer.model", ignored)))
      recipe_.data.tokenizer = from.string();
    const Duration& run = recipe_.duration;
    Duration& warmup = recipe_.schedule.warmup;
    if (!set_.contains("schedule.warmup") && run.unit == Duration::Unit::steps &&
        warmup.unit == Duration::Unit::steps && warmup.amount > run.amount)
      warmup.amount = std::floor(run.amount / 10);
  }

  struct Setting {
    std::string where;
    int layer = 0;  // a base is a lower layer than what names it; overrides are the highest
  };

  void override_field(const std::string& name, const std::string& value) {
    const Field* field = find_field(name);
    const std::string_view start = trim(value);
    const bool flow =
        field && field->kind == Kind::sources && (start.starts_with('[') || start.starts_with('{'));
    try {
      set(name, flow ? load_one(value) : YAML::Node(value), "--set");
    } catch (const YAML::Exception& error) {
      add({name, "--set", value, "is not valid YAML: " + error.msg, "check brackets and quotes"});
      bad_.insert(name);
    }
  }

  void read_base(const YAML::Node& root, const std::string& origin, const fs::path& folder,
                 std::vector<fs::path> chain) {
    const YAML::Node base = root["base"];
    if (!base) return;
    const std::string where = place(origin, base.Mark());
    if (!base.IsScalar() || base.Scalar().empty()) {
      add({"base", where, shown(base), "must be the path of a recipe", "like base: other.yaml"});
      return;
    }
    const fs::path path = folder / base.Scalar();
    std::error_code error;
    const fs::path file = fs::weakly_canonical(path, error);
    if (error || !fs::is_regular_file(file, error)) {
      add({"base", where, base.Scalar(), str("is not a file, looked for at ", path.string()),
           nearest_file(path)});
    } else if (std::find(chain.begin(), chain.end(), file) != chain.end()) {
      add({"base", where, base.Scalar(), "leads back to itself", "break the circle"});
    } else {
      chain.push_back(file);
      read(read_file(file), path.lexically_normal().string(), path.parent_path(), std::move(chain));
    }
  }

  void walk(const YAML::Node& map, const std::string& prefix, const std::string& origin) {
    std::map<std::string, std::string> seen;
    for (const auto& entry : map) {
      const std::string where = place(origin, entry.first.Mark());
      if (!entry.first.IsScalar()) {
        add({prefix, where, shown(entry.first), "is no name of a field", "names are plain words"});
        continue;
      }
      const std::string name = prefix + entry.first.Scalar();
      const auto [first, fresh] = seen.emplace(name, where);
      if (!fresh)
        add({name, where, "", str("appears twice, first at ", first->second),
             "keep one of the two"});
      else if (name != "base")
        visit(name, entry.second, where, origin);
    }
  }

  void visit(const std::string& name, const YAML::Node& node, const std::string& where,
             const std::string& origin) {
    if (!is_group(name))
      set(name, node, where);
    else if (node.IsMap())
      walk(node, name + ".", origin);
    else if (!node.IsNull())
      add({name, where, shown(node), "must be a map of fields", suggest_name(name + ".?")});
  }

  void set(const std::string& name, const YAML::Node& node, const std::string& where) {
    const Field* field = find_field(name);
    if (!field) {
      const char* rule = is_group(name) ? "is a group of fields" : "is not a field of a recipe";
      add({name, where, "", rule, suggest_name(is_group(name) ? name + ".?" : name)});
      return;
    }
    set_[name] = {where, layer_};
    bad_.erase(name);
    if (field->kind == Kind::sources) {
      read_sources(*field, node, where);
    } else if (!node.IsScalar() || !field->set(recipe_, node.Scalar())) {
      bad_.insert(name);
      add({name, where, shown(node), field->rule, suggest_value(*field, shown(node))});
    } else if (name == "model.from" && !recipe_.model.from.empty()) {
      forget_shape(where);
    }
  }

  void forget_shape(const std::string& where) {
    for (const std::string& name : shape_fields()) {
      const auto at = set_.find(name);
      if (at == set_.end() || at->second.layer == layer_) continue;
      const Field& field = *find_field(name);
      notes_.push_back({name, at->second.where, field.get(recipe_),
                        str("has no effect: model.from (", where, ") sets the shape"), ""});
      field.set(recipe_, field.get(Recipe()));
      set_.erase(at);
    }
  }

  void read_sources(const Field& field, const YAML::Node& node, const std::string& where) {
    std::vector<Source>& sources = field.sources(recipe_);
    sources.clear();
    if (!node.IsSequence()) {
      if (!node.IsNull()) read_source(field, node, where, sources);
      return;
    }
    const std::string origin = where.substr(0, where.rfind(':'));
    const bool lines = where != "--set";
    for (const auto& item : node) {
      const std::string at = lines ? place(origin, item.Mark()) : where;
      set_[str(field.name, "[", sources.size(), "]")] = {at, layer_};
      read_source(field, item, at, sources);
    }
  }

  // Always adds one source, so that places keep their numbers.
  void read_source(const Field& field, const YAML::Node& node, const std::string& where,
                   std::vector<Source>& sources) {
    Source source;
    if (node.IsScalar()) source.path = node.Scalar();
    for (const auto& entry : node.IsMap() ? node : YAML::Node()) {
      const std::string key = shown(entry.first);
      const auto weight =
          entry.second.IsScalar() ? parse_number(entry.second.Scalar()) : std::nullopt;
      if (key == "path" && entry.second.IsScalar())
        source.path = entry.second.Scalar();
      else if (key == "weight" && weight && *weight > 0)
        source.weight = *weight;
      else if (key == "weight")
        fault(field, where, shown(entry.second), "weight must be a number above 0",
              "remove a source instead of giving it no weight");
      else
        fault(field, where, key, "is not a field of a source", "known are path and weight");
    }
    if (source.path.empty())
      fault(field, where, shown(node), field.rule, "like {path: books, weight: 2}");
    sources.push_back(source);
  }

  void fault(const Field& field, const std::string& where, const std::string& value,
             const std::string& rule, const std::string& remedy) {
    bad_.insert(field.name);
    add({field.name, where, value, rule, remedy});
  }

  Recipe recipe_;
  int layer_ = 0;
  std::map<std::string, Setting> set_;
  std::set<std::string> bad_;
  std::vector<Violation> violations_, notes_;
};

}  // namespace

Parsed parse(const std::string& yaml, const std::string& origin,
             const std::vector<std::string>& overrides, const fs::path& folder, Inputs inputs,
             const Rules& more) {
  Parser parser;
  std::error_code ignored;
  parser.read(yaml, origin, folder, {fs::weakly_canonical(origin, ignored)});
  parser.override_with(overrides);
  return parser.finish(folder, inputs, more);
}

Parsed load(const fs::path& file, const std::vector<std::string>& overrides, Inputs inputs,
            const Rules& more) {
  std::error_code error;
  if (fs::is_directory(file, error))
    throw ConfigError({{"", "", "", str("there is no recipe ", file.string(), ": it is a folder"),
                        "name a .yaml file in it"}});
  if (!fs::exists(file, error) || fs::is_character_file(file, error))
    throw ConfigError(
        {{"", "", "", str("there is no recipe ", file.string()), nearest_file(file)}});
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  return parse(read_file(file), file.string(), overrides, folder, inputs, more);
}

std::optional<std::int64_t> learnt_vocab(const std::string& tokenizer) {
  constexpr std::string_view prefix = "bpe-";
  std::int64_t vocab = 0;
  const char *start = tokenizer.data() + prefix.size(), *end = tokenizer.data() + tokenizer.size();
  if (!tokenizer.starts_with(prefix) || std::from_chars(start, end, vocab).ptr != end ||
      start == end)
    return {};
  return vocab;
}

}  // namespace tutti::recipe
