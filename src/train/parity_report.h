// A ParityReport as text and as a page.
#pragma once
#include <string>

#include "train/parity.h"

namespace tutti::train {

std::string parity_text(const ParityReport& report);
std::string parity_html(const ParityReport& report);  // whole, without other files

}  // namespace tutti::train
