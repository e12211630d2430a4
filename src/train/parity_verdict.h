// Who is to blame, in words.
#pragma once
#include <string>

#include "train/parity.h"

namespace tutti::train {

// The whole differs, and no degree alone does.
bool no_part_differs(const ParityReport& report);

std::string verdict_of(const ParityReport& report);

// "gradient of model.norm.weight by 0.5 (2 times what it should be)".
std::string to_text(const Difference& difference);
// 1.2e-07; "not finite".
std::string difference_text(double value);

}  // namespace tutti::train
