// Where the elements of a parameter that is cut lie in the whole one: what draws by position needs.
#pragma once
#include <vector>

#include "optim/optimizer.h"
#include "parallel/cut.h"

namespace tutti::parallel {

// Ascending runs of the local tensor's elements, row-major, that lie side by side in the whole
// tensor; empty if the rank holds all of it.
std::vector<optim::Run> places_of(const Cut& cut);

}  // namespace tutti::parallel
