// train_divergence_bench [MIB [TENSORS]]: what a comparison of ranks costs (train/divergence.h).
//
// 1 and 2 ranks, threads of one core each, hold MIB (512) of fp32 in TENSORS (300) alike; the
// median of 7 comparisons, per rank. A rank alone compares with itself: nothing is hashed.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "testing/ranks.h"
#include "train/divergence.h"

using namespace tutti;

namespace {

void measure(int ranks, std::int64_t mib, std::int64_t tensors) {
  auto groups = collective::make_thread_groups(ranks);
  testing::run_members(groups, [&](int rank, collective::Group&) {
    at::set_num_threads(1);
    std::vector<parallel::StateTensor> held;
    for (std::int64_t i = 0; i < tensors; ++i)
      held.push_back({str("model/", i), torch::zeros({(mib << 18) / tensors})});
    train::DivergenceWatch watch(groups[static_cast<std::size_t>(rank)], {});
    std::vector<double> seconds;
    for (int round = 0; round < 8; ++round) {
      const double start = real_clock().now();
      if (watch.compare(held)) std::abort();
      if (round > 0) seconds.push_back(real_clock().now() - start);
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    if (rank == 0)
      std::printf("%d ranks: %.2f ms, %.1f GB/s hashed a rank\n", ranks, 1e3 * median,
                  static_cast<double>(watch.bytes()) / median / 1e9);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t mib = argc > 1 ? std::atoll(argv[1]) : 512;
  const std::int64_t tensors = argc > 2 ? std::atoll(argv[2]) : 300;
  measure(2, mib, tensors);
}
