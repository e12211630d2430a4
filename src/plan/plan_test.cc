#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "plan/pipeline_schedule.h"

using namespace tutti;
using namespace tutti::plan;

namespace {

int chunks_of(const std::string& kind) {
  return kind == "interleaved" || kind == "zb-v" || kind == "dualpipe-v" ? 2 : 1;
}

PipelineTiming timed(const std::string& kind, int ranks, int micro_batches,
                     const PassCosts& costs = {}) {
  return simulate(make_pipeline_schedule(kind, ranks, chunks_of(kind), micro_batches), costs);
}

int peak(const PipelineTiming& timing) {
  return *std::max_element(timing.peak_activations.begin(), timing.peak_activations.end());
}

// The header's rules, told again.
bool possible(const std::string& kind, int ranks, int chunks, int micro_batches) {
  if (kind == "interleaved") return chunks > 1 && micro_batches % ranks == 0;
  if (kind == "zb-v") return chunks == 2;
  if (kind == "dualpipe-v") return chunks == 2 && micro_batches >= 2 * ranks;
  return chunks == 1;
}

// Each refusal has a reason, and with all of its first nearest values nothing is refused.
void check_reasons(const ConfigError& error, PipelineSchedule wanted) {
  for (const Violation& violation : error.violations()) {
    CHECK(violation.rule.starts_with("must be "));
    const int nearest =
        std::stoi(violation.remedy.substr(violation.remedy.find_first_of("0123456789")));
    (violation.field == "pipeline.chunks" ? wanted.chunks : wanted.micro_batches) = nearest;
  }
  CHECK(possible(wanted.kind, wanted.ranks, wanted.chunks, wanted.micro_batches));
}

}  // namespace

TEST_CASE("pipeline: every schedule ends, with each pass once, or is refused, over a grid") {
  int ended = 0, refused = 0;
  for (const std::string& kind : pipeline_kinds())
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (int chunks = 1; chunks <= 4; ++chunks)
        for (int micro_batches = 1; micro_batches <= 24; ++micro_batches) {
          INFO(kind << " on " << ranks << " ranks x " << chunks << ", " << micro_batches);
          PipelineSchedule schedule;
          try {
            schedule = make_pipeline_schedule(kind, ranks, chunks, micro_batches);
          } catch (const ConfigError& error) {
            CHECK_FALSE(possible(kind, ranks, chunks, micro_batches));
            check_reasons(error, {kind, ranks, chunks, micro_batches, {}, {}});
            ++refused;
            continue;
          }
          CHECK(possible(kind, ranks, chunks, micro_batches));
          // Costs that are not alike, so that no order is right by symmetry.
          const PipelineTiming timing = simulate(schedule, {1.1, 0.7, 1.9, 0.3});
          CHECK(timing.bubble < 1);
          ++ended;
        }
  CHECK(ended > 1000);
  CHECK(refused > 1000);
}

// Qi et al., ICLR 2024, tables 5 and 6: profiled milliseconds, and the bubbles computed from them.
TEST_CASE("pipeline: the published bubbles of 1f1b and zb-h1, to four digits") {
  struct Row {
    int micro_batches;
    PassCosts costs;
    double one_f_one_b, zb_h1;
  };
  for (const Row& row : {Row{24, {18.522, 18.086, 9.337, 0.601}, .2431, .1585},
                         Row{32, {18.513, 18.086, 9.331, 0.626}, .1985, .1242},
                         Row{64, {18.546, 18.097, 9.321, 0.762}, .1240, .0674},
                         Row{24, {29.718, 29.444, 19.927, 0.527}, .2347, .1323},
                         Row{32, {29.802, 29.428, 19.530, 0.577}, .1898, .1045},
                         Row{64, {29.935, 29.621, 19.388, 0.535}, .1091, .0554}}) {
    CHECK(timed("1f1b", 8, row.micro_batches, row.costs).bubble ==
          doctest::Approx(row.one_f_one_b).epsilon(0.0003));
    CHECK(timed("zb-h1", 8, row.micro_batches, row.costs).bubble ==
          doctest::Approx(row.zb_h1).epsilon(0.0008));
  }
}

TEST_CASE("pipeline: bubbles are those of the formulas") {
  for (const int p : {2, 4, 7}) {
    const int m = 4 * p;
    // (p - 1) / (m + p - 1), with F = 1, B = 2.
    CHECK(timed("gpipe", p, m).bubble == doctest::Approx((p - 1.0) / (m + p - 1)));
    CHECK(timed("1f1b", p, m).bubble == doctest::Approx((p - 1.0) / (m + p - 1)));
    CHECK(timed("interleaved", p, m).bubble == doctest::Approx((p - 1.0) / (2 * m + p - 1)));
    // (p - 1)(F + B - W) of 3m.
    CHECK(timed("zb-h1", p, m).span == doctest::Approx(3 * m + p - 1));
    CHECK(timed("zb-v", p, m).bubble == doctest::Approx(0));
  }
}

TEST_CASE("pipeline: activations stay within the schedule's memory, however many micro-batches") {
  for (const int p : {2, 3, 8})
    for (const int m : {2 * p, 8 * p}) {
      INFO(p << " ranks, " << m << " micro-batches");
      CHECK(peak(timed("gpipe", p, m)) == m);
      CHECK(peak(timed("1f1b", p, m)) == p);
      CHECK(peak(timed("zb-h1", p, m)) == p);
      CHECK(peak(timed("zb-v", p, m)) <= 2 * p);  // of half stages
      CHECK(peak(timed("dualpipe-v", p, m)) <= 2 * p + 1);
      CHECK(peak(timed("interleaved", p, m)) == 3 * p - 1);
    }
}

TEST_CASE("pipeline: where the stages lie") {
  CHECK(make_pipeline_schedule("interleaved", 2, 3, 4).rank_of ==
        std::vector<int>{0, 1, 0, 1, 0, 1});
  CHECK(make_pipeline_schedule("zb-v", 3, 2, 4).rank_of == std::vector<int>{0, 1, 2, 2, 1, 0});
}

TEST_CASE("pipeline: bad degrees are refused, all at once, with the nearest legal values") {
  const auto refusal = [](const std::string& kind, int ranks, int chunks, int micro_batches) {
    try {
      make_pipeline_schedule(kind, ranks, chunks, micro_batches);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal("1f2b", 0, 1, 0).find("must be one of gpipe, 1f1b") != std::string::npos);
  CHECK(refusal("1f2b", 0, 1, 0).find("pipeline.ranks") != std::string::npos);
  CHECK(refusal("1f2b", 0, 1, 0).find("pipeline.micro_batches") != std::string::npos);
  CHECK(refusal("interleaved", 4, 1, 6).find("the nearest are 4 and 8") != std::string::npos);
  CHECK(refusal("interleaved", 4, 1, 6).find("must be at least 2") != std::string::npos);
  CHECK(refusal("zb-v", 4, 3, 6).find("must be 2 for zb-v") != std::string::npos);
  CHECK(refusal("dualpipe-v", 4, 2, 7).find("the nearest is 8") != std::string::npos);
  CHECK(refusal("1f1b", 4, 1, 1).empty());
}

TEST_CASE("pipeline: a schedule that cannot end, or leaves a pass out, is found and named") {
  PipelineSchedule schedule = make_pipeline_schedule("1f1b", 2, 1, 3);
  std::swap(schedule.orders[1][0], schedule.orders[1][1]);  // backward before its forward
  CHECK_THROWS_WITH(simulate(schedule, {}),
                    doctest::Contains("rank 1 waits to run the backward of micro-batch 0"));
  schedule = make_pipeline_schedule("zb-h1", 2, 1, 3);
  schedule.orders[0].pop_back();
  CHECK_THROWS_WITH(simulate(schedule, {}), doctest::Contains("leaves out or doubles"));
  schedule = make_pipeline_schedule("gpipe", 2, 1, 3);
  schedule.orders[0].push_back(schedule.orders[0][0]);
  CHECK_THROWS_WITH(simulate(schedule, {}), doctest::Contains("appears twice"));
}
