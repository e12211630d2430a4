// tests/plan/refused.case: layouts that are refused or idle, with all that is said of each.
#include <doctest/doctest.h>

#include <cstdlib>

#include "base/fs.h"
#include "base/text.h"
#include "plan/layout.h"
#include "recipe/fields.h"
#include "recipe/parse.h"

using namespace tutti;

namespace {

const fs::path file = "tests/plan/refused.case";  // tests run in the source folder

// "tensor=2, batch.micro=1" -> the recipe's overrides.
std::vector<std::string> overrides_of(const std::string& settings) {
  std::vector<std::string> overrides;
  for (const std::string& setting : split(settings, ',')) {
    const std::string text(trim(setting));
    const std::string name = text.substr(0, text.find('='));
    const bool whole = name.find('.') != std::string::npos || recipe::find_field(name);
    overrides.push_back(whole ? text : "parallel." + text);
  }
  return overrides;
}

std::string said(const Violation& violation) {
  Violation shown = violation;
  if (shown.where == "--set") shown.where = "";
  return to_text(shown);
}

// One indented line a violation or note.
std::string answer_to(const std::string& settings) {
  std::string text;
  try {
    const recipe::Parsed parsed =
        recipe::parse("data: {train: a.txt}\n", "r.yaml", overrides_of(settings), ".",
                      recipe::Inputs::none, plan::layout_violations);
    for (const Violation& note : parsed.notes) text += "  note " + said(note) + "\n";
  } catch (const ConfigError& error) {
    for (const Violation& violation : error.violations()) text += "  " + said(violation) + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("layout: what is impossible or idle is said, with the nearest that is not") {
  std::string now, wanted;  // of one case
  std::string whole;
  int cases = 0, several = 0, notes = 0;
  const std::string before = read_file(file);
  for (const std::string& line : split(before, '\n')) {
    if (line.starts_with("  ")) {
      wanted += line + "\n";
      continue;
    }
    CHECK(wanted == now);
    wanted = now = "";
    whole += line + "\n";
    if (line.empty() || line.starts_with('#')) continue;
    CAPTURE(line);
    now = answer_to(line);
    CHECK_FALSE(now.empty());
    whole += now;
    ++cases;
    several += std::count(now.begin(), now.end(), '\n') > 1;
    notes += now.starts_with("  note");
  }
  CHECK(cases - notes >= 100);
  CHECK(several >= 20);
  whole.pop_back();
  if (std::getenv("TUTTI_REWRITE")) write_file(file, whole);
}

TEST_CASE("layout: a violation has its line, and rules on a misread field wait") {
  const auto error_of = [](const std::string& yaml) {
    try {
      recipe::parse("data: {train: a.txt}\n" + yaml, "r.yaml", {}, ".", recipe::Inputs::none,
                    plan::layout_violations);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(error_of("parallel:\n  engine: mesh\n  workers: 2\n  tensor: 2\n  zero: 1\n  shard: 2\n"
                 "optimizer: {name: muon}\n")
            .find("r.yaml:7: parallel.shard = 2: must divide") != std::string::npos);
  const std::string both = error_of("parallel:\n  workers: two\n  tensor: 2\n");
  CHECK(both.find("r.yaml:3: parallel.workers = two") != std::string::npos);
  CHECK(both.find("r.yaml:4: parallel.tensor = 2: must be 1 with") != std::string::npos);
  CHECK(both.find("must be a multiple") == std::string::npos);
}
