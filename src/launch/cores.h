// Which cores we may use, and how a job's workers share them.
#pragma once
#include <vector>

namespace tutti::launch {

// The cores that the scheduler lets us run on (taskset, cpusets), ascending.
std::vector<int> allowed_cores();

// How many cores' worth of time we get: allowed_cores(), less where the control group has a quota.
int usable_cores();

// The cores of each worker: equal, neighbouring, disjoint slices of `cores`, each of at least
// `threads`; all empty (no pinning) where workers x threads exceed them.
std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int workers, int threads);

}  // namespace tutti::launch
