// Texts of any length between ranks.
#pragma once
#include <string>
#include <vector>

#include "collective/group.h"

namespace tutti::collective {

// Every rank's text, in rank order, on every rank. For what is said once, not in every step.
std::vector<std::string> all_gather_text(Group& group, const std::string& text);

}  // namespace tutti::collective
