// What `tutti doctor` looks at.
#pragma once
#include <string>
#include <vector>

namespace tutti::cli {

struct Finding {
  enum class Grade { good, note, bad };  // bad: training will not work until it is remedied
  Grade grade = Grade::good;
  std::string subject;  // "memory"
  std::string detail;   // "23.4 GiB, 21.0 GiB free"
  std::string remedy;   // "" if good
};

std::vector<Finding> examine_machine();

}  // namespace tutti::cli
