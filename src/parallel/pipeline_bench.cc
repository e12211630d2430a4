// parallel_pipeline_bench [MILLISECONDS [ROUNDS]]: the share of time that ranks of a pipeline stand
// idle, measured, beside what plan::simulate() says of the schedule.
//
// Stages are toys: each pass (forward, input gradient, weight gradient) of each stage sleeps for
// MILLISECONDS (20), so that ranks need no cores of their own; everything else is the real
// parallel::Pipeline on ranks that are threads, with messages of 4 KiB. Idle is 1 - work / span of
// the slowest rank, of the sleeps as they were. Each row is the median of ROUNDS (3).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "parallel/toy_stages.h"
#include "testing/ranks.h"

using namespace tutti;
using namespace tutti::parallel;

namespace {

// Of one rank, in seconds.
struct Seen {
  double first = 0, last = 0, work = 0;
};

double idle_share(const plan::PipelineSchedule& schedule, double seconds) {
  auto groups = collective::make_thread_groups(schedule.ranks);
  std::vector<Seen> all(groups.size());
  testing::run_members(groups, [&](int rank, collective::Group& group) {
    at::set_num_threads(1);
    const auto at = static_cast<std::size_t>(rank);
    Seen& seen = all[at];
    group.barrier();
    run_toy(schedule, groups[at], 1024, [&](plan::Pass, int, int) {
      const double start = real_clock().now();
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      seen.last = real_clock().now();
      if (seen.work == 0) seen.first = start;
      seen.work += seen.last - start;
    });
  });
  double span = 0, work = 0;
  for (const Seen& seen : all) {
    span = std::max(span, seen.last - seen.first);
    work += seen.work / static_cast<double>(all.size());
  }
  return 1 - work / span;
}

struct Row {
  const char* kind;
  int ranks, chunks, micro_batches;
};

constexpr Row rows[] = {
    {"gpipe", 2, 1, 8},       {"gpipe", 4, 1, 8},       {"gpipe", 4, 1, 16},
    {"1f1b", 2, 1, 8},        {"1f1b", 4, 1, 4},        {"1f1b", 4, 1, 8},
    {"1f1b", 4, 1, 16},       {"interleaved", 2, 2, 8}, {"interleaved", 4, 2, 8},
    {"interleaved", 4, 3, 8}, {"zb-h1", 2, 1, 8},       {"zb-h1", 4, 1, 4},
    {"zb-h1", 4, 1, 8},       {"zb-h1", 4, 1, 16},      {"zb-v", 2, 2, 8},
    {"zb-v", 4, 2, 4},        {"zb-v", 4, 2, 8},        {"zb-v", 4, 2, 16},
    {"dualpipe-v", 2, 2, 8},  {"dualpipe-v", 4, 2, 8},  {"dualpipe-v", 4, 2, 16},
};

void run(double seconds, int rounds) {
  std::printf("%-12s %6s %7s %14s %9s %8s\n", "schedule", "ranks", "chunks", "micro-batches",
              "measured", "theory");
  for (const Row& row : rows) {
    const auto schedule =
        plan::make_pipeline_schedule(row.kind, row.ranks, row.chunks, row.micro_batches);
    std::vector<double> shares;
    for (int round = 0; round < rounds; ++round) shares.push_back(idle_share(schedule, seconds));
    std::sort(shares.begin(), shares.end());
    std::printf("%-12s %6d %7d %14d %8.1f%% %7.1f%%\n", row.kind, row.ranks, row.chunks,
                row.micro_batches, 100 * shares[shares.size() / 2],
                100 * plan::simulate(schedule, {}).bubble);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run((argc > 1 ? std::atof(argv[1]) : 20) / 1000, argc > 2 ? std::atoi(argv[2]) : 3);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
