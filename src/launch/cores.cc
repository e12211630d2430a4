#include "launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace tutti::launch {
namespace {

// Cores' worth of time in a control group's cpu.max ("max 100000", "200000 100000"); 0: no limit.
double quota(const std::string& file) {
  std::ifstream in(file);
  std::string limit;
  double period = 0;
  if (!(in >> limit >> period) || limit == "max" || period <= 0) return 0;
  return std::strtod(limit.c_str(), nullptr) / period;
}

}  // namespace

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

int usable_cores() {
  const int cores = static_cast<int>(allowed_cores().size());
  const double limit = quota("/sys/fs/cgroup/cpu.max");
  if (limit <= 0) return cores;
  return std::clamp(static_cast<int>(std::ceil(limit)), 1, cores);
}

std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int workers, int threads) {
  std::vector<std::vector<int>> shares(static_cast<std::size_t>(workers));
  const std::size_t each = cores.size() / static_cast<std::size_t>(workers);
  if (each == 0 || each < static_cast<std::size_t>(threads)) return shares;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto first = cores.begin() + static_cast<std::ptrdiff_t>(i * each);
    shares[i].assign(first, first + static_cast<std::ptrdiff_t>(each));
  }
  return shares;
}

}  // namespace tutti::launch
