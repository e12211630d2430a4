// The report of runs of many sizes. TUTTI_KEEP_REPORT=FOLDER keeps one there to look at.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/rng.h"
#include "events/reader.h"
#include "events/report.h"
#include "events/summary.h"
#include "events/writer.h"

namespace tutti::events {
namespace {

using Pair = std::pair<const char*, double>;

// A run as recorder.h writes one, by formulas.
void write_rank(const RunFolder& run, int rank, std::int64_t steps) {
  Writer writer(run.events(rank), rank, 1ull << 30);
  const RandomStream random(1, str("rank ", rank));
  if (rank == 0)
    writer.instant("start", 0,
                   {{"name", "shakespeare"},
                    {"parameters", 10'650'000},
                    {"threads", 1},
                    {"transport", "memory"},
                    {"engine", "replicated"},
                    {"precision", "fp32"},
                    {"torch", "2.13.0"},
                    {"cpu", "AVX512"},
                    {"first_step", 0},
                    {"total_steps", steps},
                    {"workers", 2}});
  for (std::int64_t step = 1; step <= steps; ++step) {
    const auto noise = [&](std::uint64_t i) {
      return random.normal(8 * static_cast<std::uint64_t>(step) + i);
    };
    const double share = static_cast<double>(step) / static_cast<double>(steps);
    const double forward = 0.031 + 0.001 * noise(0), backward = 0.062 + 0.002 * noise(1);
    const double wait = 0.004 * (1 + rank) * std::exp(0.3 * noise(2)), data = 0.0006,
                 optimizer = 0.0035;
    const double whole = forward + backward + wait + data + optimizer + 0.001;
    const std::array values = {
        Pair{"step_seconds", whole},
        Pair{"data_seconds", data},
        Pair{"forward_seconds", forward},
        Pair{"backward_seconds", backward},
        Pair{"wait_seconds", wait},
        Pair{"optimizer_seconds", optimizer},
        Pair{"loss", 1.3 + 4.2 * std::exp(-9 * share) + 0.4 * (1 - share) + 0.04 * noise(3)},
        Pair{"lr", 3e-3 * std::min(share * 20, 0.5 + 0.5 * std::cos(3.14159 * share))},
        Pair{"grad_norm", 0.4 * std::exp(0.2 * noise(4)) + 2 * std::exp(-30 * share)},
        Pair{"tokens_per_second", 8192 / whole},
        Pair{"mfu", 0.058 / whole}};
    writer.scalars(step, std::span(values).first(rank == 0 ? values.size() : 6));
    if (rank != 0) continue;
    if (step % std::max<std::int64_t>(1, steps / 8) == 0) {
      writer.scalars(step, std::array{Pair{"validation_loss", 1.42 + 4.1 * std::exp(-9 * share)}});
      writer.span("checkpoint", step, 0, 0.02);
      writer.instant("checkpoint", step, {{"step", step}});
      writer.instant(
          "sample", step,
          {{"text", "ROMEO:\nWhat light, at step " + std::to_string(step) +
                        ", through yonder </script><b>window</b> breaks?\n\nJULIET:\nAy me!\n"}});
    }
  }
  if (rank == 0) {
    writer.instant("warning", steps, {{"text", "update skipped: <layers.0> is not finite"}});
    writer.instant("done", steps,
                   {{"steps", steps},
                    {"loss", 1.31},
                    {"validation_loss", 1.42},
                    {"nats_per_byte", 1.42},
                    {"tokens_per_second", 79'000},
                    {"mfu", 0.57},
                    {"seconds", 0.1 * static_cast<double>(steps)},
                    {"parameters", 10'650'000},
                    {"tokens", 8192 * steps},
                    {"first_step_seconds", 0.4},
                    {"name", "shakespeare"}});
  }
}

RunFolder fake_run(const fs::path& path, std::int64_t steps, int ranks) {
  const RunFolder run = create_run(path);
  for (int rank = 0; rank < ranks; ++rank) write_rank(run, rank, steps);
  write_file(run.recipe(),
             "name: shakespeare\nmodel:\n  family: llama\n  layers: 6 # blocks\ndata:\n  train: "
             "[corpus/plays]\n");
  write_summary(run, make_summary(run, 0, ranks));
  return run;
}

Json data_in(const std::string& page) {
  const std::string mark = "id=\"data\">";
  const std::size_t begin = page.find(mark) + mark.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST_CASE("report: one file, nothing from outside, text never markup") {
  const TempFolder folder;
  const RunFolder run = fake_run(folder.path() / "run", 40, 2);
  write_report(run);
  const std::string page = read_file(run.report());
  for (const char* outside : {"src=", "href=", "@import", "url(", "http-equiv=\"refresh", "fetch("})
    CHECK_MESSAGE(page.find(outside) == std::string::npos, outside);
  CHECK(page.find("<b>window") == std::string::npos);
  CHECK(page.find("</script><b>") == std::string::npos);
  const Json data = data_in(page);
  CHECK(data["samples"].size() == 8);
  CHECK(data["samples"][7]["text"].get<std::string>().find("</script><b>window</b>") !=
        std::string::npos);
  CHECK(data["series"]["loss"].size() == 40);
  CHECK(data["series"]["validation_loss"].size() == 8);
  CHECK(data["ranks"].size() == 2);
  CHECK(data["ranks"][1]["wait"].get<double>() > data["ranks"][0]["wait"].get<double>());
  CHECK(data["summary"]["loss"] == 1.31);
}

TEST_CASE("report: the parts of a step add up to it") {
  const TempFolder folder;
  for (const std::int64_t steps : {3, 1000}) {
    const RunFolder run = fake_run(folder.path() / std::to_string(steps), steps, 1);
    write_report(run);
    const Json parts = data_in(read_file(run.report()))["parts"];
    CHECK(parts["steps"].size() == std::min<std::int64_t>(steps, 240));
    double sum = 0, expected = 0;
    for (const Json& values : parts["values"])
      for (const Json& value : values)
        sum += value.get<double>() / static_cast<double>(values.size());
    const History history(run.events(0));
    for (const auto& point : history.series("step_seconds"))
      expected += point.value / static_cast<double>(steps);
    const auto saved = static_cast<double>(history.spans().size());
    CHECK(sum ==
          doctest::Approx(expected + 0.02 * saved / static_cast<double>(steps)).epsilon(0.02));
    CHECK(parts["names"].size() == 7);
  }
}

TEST_CASE("report: a long run is thinned, its extremes are not lost") {
  const TempFolder folder;
  const RunFolder run = create_run(folder.path() / "run");
  {
    Writer writer(run.events(0), 0);
    for (std::int64_t step = 1; step <= 20'000; ++step)
      writer.scalars(step, std::array{Pair{"loss", step == 7777     ? 99.0
                                                   : step == 13'000 ? -9.0
                                                                    : 1.0}});
  }
  write_report(run);
  const Json loss = data_in(read_file(run.report()))["series"]["loss"];
  CHECK(loss.size() == 800);
  double low = 1, high = 1;
  for (std::size_t i = 0; i < loss.size(); ++i) {
    low = std::min(low, loss[i][2].get<double>());
    high = std::max(high, loss[i][3].get<double>());
    if (i > 0) CHECK(loss[i][0] > loss[i - 1][0]);
  }
  CHECK(low == -9);
  CHECK(high == 99);
}

TEST_CASE("report: of a run that never began, and beside a broken summary") {
  const TempFolder folder;
  const RunFolder run = create_run(folder.path() / "run");
  CHECK_NOTHROW(write_report(run));
  write_file(run.summary(), "{\"loss\": ");
  CHECK_NOTHROW(write_report(run));
  write_file(run.summary(), "{\"parameters\": null, \"workers\": \"two\"}");
  CHECK_NOTHROW(write_report(run));
}

TEST_CASE("report: kept to be looked at") {
  const char* keep = std::getenv("TUTTI_KEEP_REPORT");
  if (!keep) return;
  const char* steps = std::getenv("TUTTI_KEEP_STEPS");
  write_report(fake_run(keep, steps ? std::atoll(steps) : 2000, 2));
}

}  // namespace
}  // namespace tutti::events
