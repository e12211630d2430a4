// Every schedule through the real Pipeline, with passes that take random times, under a watchdog:
// it ends, whoever is late, or was refused before anything started.
#include "parallel/pipeline.h"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "parallel/toy_stages.h"
#include "testing/ranks.h"

namespace tutti::parallel {
namespace {

using Groups = std::vector<std::shared_ptr<collective::Group>>;

// Aborts the groups unless it is destroyed within `seconds`.
class Watchdog {
 public:
  Watchdog(Groups& groups, double seconds)
      : thread_([this, &groups, seconds] {
          std::unique_lock lock(mutex_);
          if (!wake_.wait_for(lock, std::chrono::duration<double>(seconds),
                              [this] { return done_; }))
            groups[0]->abort("the watchdog barked");
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

// Most passes take no time, some up to half a millisecond, few some milliseconds.
ToyStages::Work random_delays(unsigned seed) {
  return [random = std::mt19937(seed)](plan::Pass, int, int) mutable {
    const unsigned draw = random() % 100;
    if (draw < 60) return;
    std::this_thread::sleep_for(
        std::chrono::microseconds(draw < 98 ? random() % 500 : 2000 + random() % 2000));
  };
}

// What each rank held at most. WorldError if it does not end in time or a value went astray.
std::vector<int> run_watched(const plan::PipelineSchedule& schedule, std::int64_t elements,
                             unsigned seed, double seconds) {
  Groups groups = collective::make_thread_groups(schedule.ranks);
  std::vector<int> peaks(groups.size());
  const Watchdog watchdog(groups, seconds);
  testing::run_members(groups, [&](int rank, collective::Group&) {
    at::set_num_threads(1);
    const auto at = static_cast<std::size_t>(rank);
    peaks[at] = run_toy(schedule, groups[at], elements,
                        random_delays(seed * 16 + static_cast<unsigned>(rank)));
  });
  return peaks;
}

struct Cell {
  std::string kind;
  int ranks = 0, chunks = 0, micro_batches = 0;
};

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (const std::string& kind : plan::pipeline_kinds())
    for (int ranks = 2; ranks <= 6; ++ranks)
      for (int chunks = 1; chunks <= 3; ++chunks)
        for (int m = 1; m <= 12; ++m) cells.push_back({kind, ranks, chunks, m});
  return cells;
}

}  // namespace

// CI takes a share of the cells; TUTTI_GRID=all takes all (./dev grid). In every third, messages
// are too large to be sent before they are received.
TEST_CASE("pipeline: every schedule ends under random delays, or is refused before it starts") {
  const bool all = std::getenv("TUTTI_GRID") != nullptr;
  unsigned index = 0, ran = 0, short_of_micro_batches = 0, refused = 0;
  for (const Cell& cell : all_cells()) {
    const auto wrong =
        plan::pipeline_violations(cell.kind, cell.ranks, cell.chunks, cell.micro_batches);
    INFO(cell.kind << " on " << cell.ranks << " ranks x " << cell.chunks << ", "
                   << cell.micro_batches << " micro-batches");
    if (!wrong.empty()) {
      for (const Violation& violation : wrong) CHECK(violation.rule.starts_with("must be "));
      ++refused;
      continue;
    }
    if (++index % 11 != 5 && !all) continue;
    const auto schedule =
        plan::make_pipeline_schedule(cell.kind, cell.ranks, cell.chunks, cell.micro_batches);
    std::vector<int> peaks;
    CHECK_NOTHROW(peaks = run_watched(schedule, index % 3 ? 1 : 40000, index, 60));
    CHECK(peaks == plan::simulate(schedule, {}).peak_activations);
    ++ran;
    short_of_micro_batches += cell.micro_batches < schedule.stages();
  }
  MESSAGE(ran << " cells ran, " << short_of_micro_batches
              << " of them with fewer micro-batches than stages; " << refused << " were refused");
  CHECK(ran > 20);
  CHECK(short_of_micro_batches > 5);
}

TEST_CASE("pipeline: the watchdog sees a schedule that waits for ever") {
  auto schedule = plan::make_pipeline_schedule("gpipe", 2, 1, 2);
  std::swap(schedule.orders[0][1], schedule.orders[0][2]);  // backward 0 before forward 1
  CHECK_THROWS_WITH(plan::simulate(schedule, {}), doctest::Contains("it never ends"));
  CHECK_THROWS_WITH(run_watched(schedule, 1, 1, 0.3), doctest::Contains("the watchdog barked"));
}

TEST_CASE("pipeline: toy stages notice a message that took a wrong turn") {
  auto schedule = plan::make_pipeline_schedule("gpipe", 2, 1, 2);
  Groups groups = collective::make_thread_groups(2);
  auto other = schedule;  // rank 0 sends in another order than rank 1 believes
  std::swap(other.orders[0][0], other.orders[0][1]);
  CHECK_THROWS_WITH(testing::run_members(groups,
                                         [&](int rank, collective::Group&) {
                                           run_toy(rank ? schedule : other,
                                                   groups[static_cast<std::size_t>(rank)], 1,
                                                   [](plan::Pass, int, int) {});
                                         }),
                    doctest::Contains("was given activation"));
}

}  // namespace tutti::parallel
