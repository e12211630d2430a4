#include "plan/micro_batch.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "plan/memory.h"

using namespace tutti;
using namespace tutti::plan;
using recipe::Recipe;

namespace {

Recipe asked(std::int64_t global = 48) {
  Recipe r;
  r.model.vocab = 300;
  r.batch.global = global;
  r.batch.micro = 0;
  return r;
}

// What the fullest worker of all would hold.
double bytes_with(Recipe r, std::int64_t micro) {
  r.batch.micro = micro;
  const Layout layout = make_layout(r);
  double most = 0;
  for (int rank = 0; rank < r.parallel.workers; ++rank)
    most = std::max(most, memory_of(r, layout, rank).total());
  return most;
}

std::int64_t up(double bytes) { return static_cast<std::int64_t>(std::ceil(bytes)); }

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string refusal(const Recipe& r) {
  try {
    choose_micro_batch(r);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("micro-batch: the chosen one fits and the next larger does not, for every budget") {
  for (const char* recompute : {"none", "selective", "full", "2"}) {
    Recipe r = asked();
    r.recompute = recompute;
    const std::vector<std::int64_t> all = {1, 2, 3, 4, 6, 8, 12, 16, 24, 48};
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(all[i]);
      r.memory_budget = up(bytes_with(r, all[i]));
      const MicroBatch found = choose_micro_batch(r);
      CHECK(found.bytes == bytes_with(r, found.samples));
      CHECK(found.bytes <= static_cast<double>(r.memory_budget));
      CHECK(found.samples >= all[i]);
      for (const std::int64_t other : all)
        if (other > found.samples)
          CHECK(bytes_with(r, other) > static_cast<double>(r.memory_budget));
      CHECK(has(found.why, str("batch.micro: auto is ", found.samples)));
    }
  }
}

TEST_CASE("micro-batch: layouts limit it") {
  Recipe r = asked();
  r.parallel.engine = "mesh";
  r.memory_budget = std::int64_t{1} << 40;
  CHECK(choose_micro_batch(r).samples == 48);
  r.parallel.workers = 4;
  CHECK(choose_micro_batch(r).samples == 12);  // one for each data rank
  r.parallel.pipeline = 2;
  r.parallel.pipeline_chunks = 2;
  r.parallel.pipeline_schedule = "interleaved";  // two data ranks; an even number each
  CHECK(choose_micro_batch(r).samples == 12);
  CHECK(layout_violations(r).empty());
  r.parallel.workers = 10;  // five data ranks
  CHECK(has(refusal(r), "no micro-batch fits this layout"));
}

TEST_CASE("micro-batch: a budget that is too little is refused, with the least that would do") {
  for (const char* recompute : {"none", "full", "auto"})
    for (const int pipeline : {1, 2}) {
      CAPTURE(std::string(recompute));
      Recipe r = asked();
      r.recompute = recompute;
      r.parallel.engine = "mesh";
      r.parallel.workers = 2;
      r.parallel.pipeline = pipeline;
      r.memory_budget = 1000;
      const std::string said = refusal(r);
      CHECK(has(said, "memory_budget = 1000: is too little"));
      const auto at = said.find("at least ");
      REQUIRE(at != std::string::npos);
      const std::int64_t least = std::stoll(said.substr(at + 9));
      r.memory_budget = least - 1;
      CHECK_FALSE(refusal(r).empty());
      r.memory_budget = least;
      CHECK(choose_micro_batch(r).bytes <= static_cast<double>(least));
    }
}

TEST_CASE("micro-batch: with recompute auto the least time wins") {
  Recipe r = asked();
  r.recompute = "auto";
  Recipe none = r, full = r;
  none.recompute = "none";
  full.recompute = "full";
  const auto time_of = [](Recipe of, std::int64_t micro) {
    of.batch.micro = micro;
    return relative_time(of, make_layout(of));
  };
  // Long samples: a whole recomputed layer costs more than passes over the weights.
  r.memory_budget = none.memory_budget = up(bytes_with(none, 8));
  const MicroBatch found = choose_micro_batch(r);
  for (const std::int64_t other : {1, 2, 3, 4, 6, 8, 12, 16, 24, 48}) {
    Recipe one = r;
    one.batch.micro = other;
    if (least_budget(one, make_layout(one)) <= static_cast<double>(r.memory_budget))
      CHECK(time_of(r, other) >= time_of(r, found.samples));
  }
  CHECK(found.samples >= 8);
  CHECK(time_of(full, 8) > time_of(none, 8));
  // Short samples: it pays to recompute for a larger micro-batch.
  r.reproducible = none.reproducible = full.reproducible = false;  // no gradients that wait
  r.data.sequence = none.data.sequence = 8;
  r.reproducible = none.reproducible = false;  // one buffer of gradients, however many passes
  r.memory_budget = none.memory_budget = up(bytes_with(none, 1));
  CHECK(choose_micro_batch(none).samples == 1);
  CHECK(choose_micro_batch(r).samples > 1);
}
