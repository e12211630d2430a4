#include "base/fault.h"

#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace tutti {

FaultScope::FaultScope(const std::string& name) {
  if (name.empty()) return;
  const int index = FaultName::index_of(name);
  if (index < 0) {
    std::vector<std::string> names;
    for (const Fault& one : faults) names.emplace_back(one.name);
    const std::string near = nearest(name, names);
    throw ConfigError({{"--with-fault", "", name, "must be one of " + join(names, ", "),
                        near.empty() ? "" : "did you mean " + near + "?"}});
  }
  detail::active_fault = index;
}

FaultScope::~FaultScope() { detail::active_fault = -1; }

}  // namespace tutti
