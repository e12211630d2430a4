#include "recipe/parse.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "recipe/check.h"
#include "recipe/fields.h"
#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

class Parser {
 public:
  // Reads `text` and, first, the files that it names by `base`.
  void read(const std::string& text, const std::string& origin, const fs::path& folder,
            std::vector<fs::path> chain) {
    YAML::Node root;
    try {
      root = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      add({"", place(origin, error.mark), "", "is not valid YAML: " + error.msg,
           "check indentation and quotes there"});
      return;
    }
    if (root.IsNull()) return;
    if (!root.IsMap()) {
      add({"", origin, "", "must be a map of fields", "like duration: 100 steps"});
      return;
    }
    read_base(root, origin, folder, std::move(chain));
    walk(root, "", origin);
  }

  void override_with(const std::string& text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      add({"", "--set", text, "must have the form a.b=c", "like --set batch.global=16"});
      return;
    }
    const std::string name(trim(text.substr(0, equals)));
    const std::string value = text.substr(equals + 1);
    try {
      set(name, name.starts_with("data.") ? YAML::Load(value) : YAML::Node(value), "--set");
    } catch (const YAML::Exception& error) {
      add({name, "--set", value, "is not valid YAML: " + error.msg, ""});
    }
  }

  Parsed finish(const fs::path& folder, bool check_data) {
    const Where where = [this](const std::string& field) {
      const auto at = where_.find(field);
      return at == where_.end() ? std::string() : at->second;
    };
    for (const Violation& violation : contradictions(recipe_, where))
      if (!bad_.contains(violation.field)) add(violation);
    if (check_data)
      for (const Violation& violation : find_data(recipe_, folder, where)) add(violation);
    if (!violations_.empty()) throw ConfigError(violations_);
    return {recipe_, without_effect(recipe_, where)};
  }

 private:
  static std::string place(const std::string& origin, const YAML::Mark& mark) {
    return mark.is_null() ? origin : str(origin, ":", mark.line + 1);
  }

  void add(Violation violation) { violations_.push_back(std::move(violation)); }

  void read_base(const YAML::Node& root, const std::string& origin, const fs::path& folder,
                 std::vector<fs::path> chain) {
    const YAML::Node base = root["base"];
    if (!base) return;
    const std::string where = place(origin, base.Mark());
    if (!base.IsScalar()) {
      add({"base", where, "", "must be the path of a recipe", ""});
      return;
    }
    const fs::path file = fs::weakly_canonical(folder / base.Scalar());
    if (std::find(chain.begin(), chain.end(), file) != chain.end()) {
      add({"base", where, base.Scalar(), "leads back to itself", "break the circle"});
      return;
    }
    if (!fs::exists(file)) {
      add({"base", where, base.Scalar(), "does not exist", str("it was looked for at ", file.string())});
      return;
    }
    chain.push_back(file);
    read(read_file(file), (folder / base.Scalar()).lexically_normal().string(), file.parent_path(),
         std::move(chain));
  }

  void walk(const YAML::Node& map, const std::string& prefix, const std::string& origin) {
    std::set<std::string> seen;
    for (const auto& entry : map) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      const std::string name = prefix + key;
      const std::string where = place(origin, entry.first.Mark());
      if (!seen.insert(key).second) {
        add({name, where, "", "appears twice", "keep one of the two"});
        continue;
      }
      if (name == "base") continue;
      const bool group = is_group(name);
      if (group && entry.second.IsMap()) {
        walk(entry.second, name + ".", origin);
      } else if (group) {
        if (!entry.second.IsNull())
          add({name, where, scalar(entry.second), "must be a map of fields",
               str("like ", name, ": {", child_of(name), ": ...}")});
      } else {
        set(name, entry.second, where);
      }
    }
  }

  static bool is_group(const std::string& name) {
    return std::any_of(fields().begin(), fields().end(),
                       [&](const Field& f) { return f.name.starts_with(name + "."); });
  }
  static std::string child_of(const std::string& group) {
    for (const Field& field : fields())
      if (field.name.starts_with(group + ".")) return field.name.substr(group.size() + 1);
    return "";
  }
  static std::string scalar(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }

  void set(const std::string& name, const YAML::Node& node, const std::string& where) {
    const Field* field = find_field(name);
    if (!field) {
      unknown(name, where);
      return;
    }
    where_[name] = where;
    if (field->kind == Kind::sources) {
      read_sources(*field, node, where);
      return;
    }
    if (node.IsScalar() && field->set(recipe_, node.Scalar())) return;
    bad_.insert(name);
    std::string remedy;
    if (node.IsScalar()) remedy = nearest(node.Scalar(), field->choices);
    if (!remedy.empty()) remedy = "did you mean " + remedy + "?";
    if (field->kind == Kind::duration && node.IsScalar() && parse_number(node.Scalar()))
      remedy = "did you mean " + node.Scalar() + " steps?";
    add({name, where, node.IsScalar() ? node.Scalar() : node.IsNull() ? "nothing" : "a list or map",
         field->rule, remedy});
  }

  void unknown(const std::string& name, const std::string& where) {
    std::vector<std::string> names;
    for (const Field& field : fields()) names.push_back(field.name);
    std::string best = nearest(name, names);
    if (best.empty()) {  // The right word in the wrong group: lr -> optimizer.lr.
      const std::string last = name.substr(name.rfind('.') + 1);
      for (const std::string& candidate : names)
        if (candidate.substr(candidate.rfind('.') + 1) == last) best = candidate;
    }
    std::string remedy = best.empty() ? "" : "did you mean " + best + "?";
    if (best.empty()) {
      const std::string group = name.substr(0, name.rfind('.') + 1);
      for (const std::string& candidate : names)
        if (!group.empty() && candidate.starts_with(group))
          remedy += (remedy.empty() ? "known here: " : ", ") + candidate.substr(group.size());
      if (remedy.empty()) remedy = "see tutti recipe reference";
    }
    add({name, where, "", is_group(name) ? "is a group of fields" : "is not a field of a recipe", remedy});
  }

  void read_sources(const Field& field, const YAML::Node& node, const std::string& where) {
    std::vector<Source> sources;
    bool good = true;
    const auto one = [&](const YAML::Node& item) {
      if (item.IsScalar()) {
        sources.push_back({item.Scalar(), 1});
        return;
      }
      if (!item.IsMap() || !item["path"] || !item["path"].IsScalar()) {
        good = false;
        return;
      }
      Source source{item["path"].Scalar(), 1};
      for (const auto& entry : item) {
        const std::string key = entry.first.Scalar();
        if (key == "path") continue;
        const auto weight = key == "weight" && entry.second.IsScalar() ? parse_number(entry.second.Scalar())
                                                                       : std::nullopt;
        if (weight) source.weight = *weight;
        good = good && weight;
      }
      sources.push_back(source);
    };
    if (node.IsSequence())
      for (const auto& item : node) one(item);
    else if (!node.IsNull())
      one(node);
    if (!good) add({field.name, where, scalar(node), field.rule, "like {path: books, weight: 2}"});
    field.sources(recipe_) = sources;
  }

  Recipe recipe_;
  std::map<std::string, std::string> where_;
  std::set<std::string> bad_;
  std::vector<Violation> violations_;
};

}  // namespace

Parsed parse(const std::string& yaml, const std::string& origin,
             const std::vector<std::string>& overrides, const fs::path& folder, bool check_data) {
  Parser parser;
  parser.read(yaml, origin, folder, {fs::weakly_canonical(origin)});
  for (const std::string& text : overrides) parser.override_with(text);
  return parser.finish(folder, check_data);
}

Parsed load(const fs::path& file, const std::vector<std::string>& overrides) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  return parse(read_file(file), file.string(), overrides, folder);
}

}  // namespace tutti::recipe
