#include "cli/doctor.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/verbs.h"

namespace tutti::cli {
namespace {

const char* grade_name(Finding::Grade grade) {
  constexpr const char* names[] = {"ok", "note", "BAD"};
  return names[static_cast<int>(grade)];
}

int report(bool json) {
  const std::vector<Finding> findings = examine_machine();
  const bool good = std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.grade == Finding::Grade::bad;
  });
  Json all = Json::array();
  for (const Finding& finding : findings) {
    const char* grade = grade_name(finding.grade);
    if (json) {
      all.push_back(Json{{"subject", finding.subject},
                         {"grade", grade},
                         {"detail", finding.detail},
                         {"remedy", finding.remedy}});
      continue;
    }
    std::printf("%-5s %-9s %s\n", grade, finding.subject.c_str(), finding.detail.c_str());
    if (!finding.remedy.empty()) std::printf("                -> %s\n", finding.remedy.c_str());
  }
  if (json) std::cout << all.dump(2) << "\n";
  return good ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, Action& chosen) {
  CLI::App* verb = app.add_subcommand("doctor", "look at this machine: what is there, what is not");
  const auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "a JSON array");
  verb->footer(example("tutti doctor"));
  verb->require_subcommand(0, 1);
  verb->callback([json, &chosen] {
    if (!chosen) chosen = [json] { return report(*json); };
  });
  add_doctor_run(verb, chosen);
}

}  // namespace tutti::cli
