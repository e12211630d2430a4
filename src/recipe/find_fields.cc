#include <algorithm>

#include "base/text.h"
#include "recipe/fields.h"

namespace tutti::recipe {
namespace {

std::vector<Field>& list_of_fields() {
  static std::vector<Field> list = make_fields();
  return list;
}

}  // namespace

const std::vector<Field>& fields() { return list_of_fields(); }

void add_engine(const std::string& name) {
  for (Field& field : list_of_fields()) {
    if (field.name != "parallel.engine") continue;
    if (std::find(field.choices.begin(), field.choices.end(), name) != field.choices.end()) return;
    field.choices.push_back(name);
    field.rule = "must be one of " + join(field.choices, ", ");
  }
}

const Field* find_field(const std::string& name) {
  for (const Field& field : fields())
    if (field.name == name) return &field;
  return nullptr;
}

bool is_group(const std::string& name) {
  return std::any_of(fields().begin(), fields().end(),
                     [&](const Field& field) { return field.name.starts_with(name + "."); });
}

}  // namespace tutti::recipe
