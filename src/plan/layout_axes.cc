// parallel.rules: which logical axis of the parameters is cut over which axis of the mesh.
#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "plan/layout.h"
#include "plan/layout_rules.h"

namespace tutti::plan {
namespace {

using Names = std::vector<std::string>;

struct LogicalAxis {
  const char* name;
  const char* standard;  // where it is cut without a rule
  const char* other;     // where a rule may cut it; "none" besides
};

// nn/model.h says what they are.
constexpr LogicalAxis logical_axes[] = {
    {"vocab", "tensor", "tensor"}, {"heads", "tensor", "tensor"}, {"kv_heads", "tensor", "tensor"},
    {"qkv", "tensor", "tensor"},   {"mlp", "tensor", "tensor"},   {"expert", "expert", "expert"},
    {"position", "none", "none"},  {"embed", "none", "none"},     {"norm", "none", "none"},
    {"router", "none", "none"}};

// Dimensions of one parameter.
constexpr std::pair<const char*, const char*> neighbours[] = {
    {"vocab", "embed"}, {"heads", "embed"}, {"kv_heads", "embed"}, {"qkv", "embed"},
    {"mlp", "embed"},   {"expert", "mlp"},  {"expert", "embed"},   {"router", "embed"}};

const Names mesh_axes = {"pipeline", "replica", "shard", "context", "tensor", "expert", "none"};

const LogicalAxis* find_axis(const std::string& name) {
  for (const LogicalAxis& axis : logical_axes)
    if (name == axis.name) return &axis;
  return nullptr;
}

Names axis_names() {
  Names names;
  for (const LogicalAxis& axis : logical_axes) names.push_back(axis.name);
  return names;
}

bool may_be(const LogicalAxis& axis, const std::string& onto) {
  return onto == "none" || onto == axis.other;
}

std::string without(const std::vector<AxisRule>& rules, std::size_t word,
                    const std::string& in_its_place) {
  Names words;
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (i != word)
      words.push_back(rules[i].word);
    else if (!in_its_place.empty())
      words.push_back(in_its_place);
  return join(words, " ");
}

// An axis that a parameter has beside `axis` and that is cut over the same axis of the mesh.
std::string neighbour_on(const std::string& axis, const std::string& onto,
                         std::map<std::string, std::string> table) {
  for (const auto& [a, b] : neighbours) {
    const std::string other = axis == a ? b : axis == b ? a : "";
    if (!other.empty() && table.at(other) == onto) return other;
  }
  return "";
}

// What is wrong with a word that names a known axis; "" if nothing is.
std::string wrong_target(const LogicalAxis& axis, const std::string& onto,
                         const std::map<std::string, std::string>& table) {
  const std::string neighbour = neighbour_on(axis.name, onto, table);
  if (!neighbour.empty() && onto != "none")
    return str("would cut two dimensions of one parameter, ", axis.name, " and ", neighbour,
               ", over ", onto);
  const std::string other = axis.other;
  return other == "none" ? str(axis.name, " is never cut: it must be none")
                         : str(axis.name, " can only be cut over ", other, ", or be none");
}

class RuleCheck {
 public:
  RuleCheck(const recipe::Recipe& recipe, std::vector<Finding>& found)
      : recipe_(recipe),
        rules_(axis_rules(recipe.parallel.rules)),
        table_(layout_rules(recipe.parallel.rules, recipe.model.own)),
        found_(found) {}

  void run() {
    for (std::size_t i = 0; i < rules_.size(); ++i) judge(i);
    if (!recipe_.model.own) judge_heads();
  }

 private:
  void judge(std::size_t i) {
    const AxisRule& rule = rules_[i];
    const LogicalAxis* axis = find_axis(rule.axis);
    if (rule.axis.empty())
      return refuse(i, "must be of the form AXIS=MESH_AXIS, like mlp=none", "");
    const bool own = recipe_.model.own;
    if (!axis && !own)
      return refuse(i, "names no logical axis: those are " + join(axis_names(), ", "),
                    nearest(rule.axis, axis_names()) + "=" + rule.onto);
    for (std::size_t earlier = 0; earlier < i; ++earlier)
      if (rules_[earlier].axis == rule.axis) return refuse(i, "is the second rule of its axis", "");
    if (std::find(mesh_axes.begin(), mesh_axes.end(), rule.onto) == mesh_axes.end())
      return refuse(i, "names no axis of the mesh: a rule cuts over tensor or expert, or is none",
                    rule.axis + "=" + nearest(rule.onto, mesh_axes));
    if (own && rule.onto != "tensor" && rule.onto != "none")
      return refuse(i, "must be tensor or none", rule.axis + "=none");
    if (!own && !may_be(*axis, rule.onto))
      refuse(i, wrong_target(*axis, rule.onto, table_), rule.axis + "=none");
  }

  void refuse(std::size_t i, const std::string& what, const std::string& instead) {
    Trial trial{"parallel.rules", {}};
    if (!instead.empty() && !instead.starts_with('=') && !instead.ends_with('='))
      trial.values.push_back(without(rules_, i, instead));
    trial.values.push_back(without(rules_, i, ""));
    found_.push_back({str("rules:", i),
                      {"parallel.rules", "parallel.engine"},
                      rules_[i].word,
                      what,
                      {trial},
                      "remove " + rules_[i].word});
  }

  // Query heads lie with their key heads.
  void judge_heads() {
    const std::string partner = recipe_.model.family == "gpt2" ? "qkv" : "kv_heads";
    if (recipe_.parallel.tensor == 1 || table_.at("heads") == table_.at(partner)) return;
    Names words;
    for (const AxisRule& rule : rules_)
      if (rule.axis != "heads" && rule.axis != partner) words.push_back(rule.word);
    const std::string cut = join(words, " ");
    words.push_back("heads=none");
    words.push_back(partner + "=none");
    found_.push_back({"rules:heads",
                      {"parallel.rules", "parallel.tensor", "model.family"},
                      recipe_.parallel.rules,
                      str("must cut heads and ", partner, " alike, or neither"),
                      {{"parallel.rules", {cut, join(words, " ")}}},
                      str("let both be tensor, or both none")});
  }

  const recipe::Recipe& recipe_;
  const std::vector<AxisRule> rules_;
  const std::map<std::string, std::string> table_;
  std::vector<Finding>& found_;
};

}  // namespace

std::vector<AxisRule> axis_rules(const std::string& rules) {
  std::vector<AxisRule> list;
  std::istringstream words(rules);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const bool formed = equals != std::string::npos && equals > 0 && equals + 1 < word.size();
    list.push_back(
        {word, formed ? word.substr(0, equals) : "", formed ? word.substr(equals + 1) : ""});
  }
  return list;
}

std::map<std::string, std::string> layout_rules(const std::string& rules, bool own_model) {
  std::map<std::string, std::string> table;
  for (const LogicalAxis& axis : logical_axes) table[axis.name] = axis.standard;
  for (const AxisRule& rule : axis_rules(rules)) {
    const LogicalAxis* axis = find_axis(rule.axis);
    const bool taken = own_model ? !rule.axis.empty() : axis && may_be(*axis, rule.onto);
    if (taken) table[rule.axis] = rule.onto;
  }
  return table;
}

void check_rules(const recipe::Recipe& recipe, std::vector<Finding>& found) {
  RuleCheck(recipe, found).run();
}

}  // namespace tutti::plan
