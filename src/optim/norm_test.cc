// Norms, clipping, bad gradients, schedules, the loss scaler.
#include "optim/norm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"

using namespace tutti;
using namespace tutti::optim;

namespace {

double norm_of(const torch::Tensor& flat) {
  return squared_norm(flat, {{"w", 0, flat.numel(), {flat.numel()}}});
}

}  // namespace

TEST_CASE("the norm's bits do not depend on who computes which blocks") {
  torch::manual_seed(2);
  const torch::Tensor flat = torch::randn({20000});
  const std::vector<Segment> segments = {{"a", 0, 9001, {9001}}, {"b", 9008, 10992, {10992}}};
  std::vector<double> sums;
  for (const Segment& segment : segments) {
    std::vector<double> table(static_cast<std::size_t>(norm_blocks(segment.size)));
    for (std::int64_t cut = norm_block; cut <= segment.size + norm_block; cut += norm_block) {
      const std::int64_t begin = cut - norm_block, end = std::min(cut, segment.size);
      if (begin < end)
        block_squares(flat.narrow(0, segment.offset + begin, end - begin),
                      table.data() + begin / norm_block);
    }
    sums.push_back(tree_sum(table));
  }
  CHECK(tree_sum(sums) == squared_norm(flat, segments));
}

TEST_CASE("optim: norms in closed form, at lengths around the lanes and blocks") {
  for (std::int64_t n : {0, 1, 2, 15, 16, 17, 4095, 4096, 4097, 3 * 4096, 100003}) {
    CAPTURE(n);
    const auto sum = static_cast<double>(n) * (static_cast<double>(n) + 1) *
                     (2.0 * static_cast<double>(n) + 1) / 6;
    const auto counted = torch::arange(1, n + 1, torch::kDouble);
    CHECK(norm_of(counted) == doctest::Approx(sum).epsilon(1e-14));
    CHECK(norm_of(torch::full({n}, 0.5f)) == 0.25 * static_cast<double>(n));  // exact
    CHECK(norm_of(torch::full({n}, -2.0, torch::kDouble)) == 4 * static_cast<double>(n));
  }
  CHECK(norm_of(torch::full({3}, 1e30f)) == doctest::Approx(3e60));  // beyond fp32
  CHECK(norm_of(torch::full({4}, 2, torch::kBFloat16)) == 16);
  CHECK(std::isnan(norm_of(torch::full({100}, std::nan("")))));
}

TEST_CASE("optim: the norm's bits do not depend on threads") {
  const auto values = torch::linspace(-1, 3, 1000003) / 7;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double one = norm_of(values);
  for (int other : {2, 3, 5}) {
    at::set_num_threads(other);
    CHECK(norm_of(values) == one);
  }
  at::set_num_threads(threads);
}

TEST_CASE("optim: clipping") {
  CHECK(clip_scale(10, 1) == doctest::Approx(0.1).epsilon(1e-6));
  CHECK(clip_scale(10, 1) < 0.1);
  CHECK(clip_scale(0.5, 1) == 1);
  CHECK(clip_scale(0, 1) == 1);
  CHECK(clip_scale(1e9, 0) == 1);  // off
  CHECK(clip_scale(4, 2) == 2 / (4 + 1e-6));
}

TEST_CASE("optim: the first segment with a NaN or an infinity is named") {
  const std::vector<Segment> segments{{"a", 0, 10, {10}}, {"b", 16, 16, {4, 4}}, {"c", 32, 3, {3}}};
  const auto with = [](std::vector<std::pair<std::int64_t, float>> bad) {
    auto flat = torch::ones({48});
    for (auto [at, value] : bad) flat[at] = value;
    return flat;
  };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  inf = std::numeric_limits<float>::infinity();
  CHECK(first_non_finite(with({}), segments) == "");
  CHECK(first_non_finite(with({{0, nan}}), segments) == "a");
  CHECK(first_non_finite(with({{9, -inf}}), segments) == "a");
  CHECK(first_non_finite(with({{31, inf}}), segments) == "b");
  CHECK(first_non_finite(with({{34, nan}, {16, inf}}), segments) == "b");
  CHECK(first_non_finite(with({{34, nan}}), segments) == "c");
  CHECK(first_non_finite(with({{12, nan}, {35, nan}}), segments) == "");  // gaps are nobody's
  CHECK(first_non_finite(with({{2, std::numeric_limits<float>::max()}}), segments) == "");
}

namespace {

double rate(const char* kind, std::int64_t step, const Lengths& lengths, double min_ratio = 0.1) {
  recipe::Schedule schedule;
  schedule.kind = kind;
  schedule.min_ratio = min_ratio;
  return learning_rate(schedule, 0.4, step, lengths);
}

struct Corner {
  const char* kind;
  std::int64_t step;
  Lengths lengths;  // total, warmup, decay
  double rate;      // of 0.4, down to 0.04
};

}  // namespace

TEST_CASE("optim: schedules at their corners") {
  const double quarter = 0.04 + 0.36 * (1 + std::sqrt(0.5)) / 2;  // cosine at t = 1/4
  for (const Corner& corner :
       std::vector<Corner>{{"constant", 0, {10, 0, 0}, 0.4},  {"constant", 9, {10, 0, 0}, 0.4},
                           {"constant", 0, {10, 4, 0}, 0.1},  {"constant", 3, {10, 4, 0}, 0.4},
                           {"constant", 99, {10, 4, 0}, 0.4}, {"linear", 0, {10, 0, 0}, 0.4},
                           {"linear", 5, {10, 0, 0}, 0.22},   {"linear", 10, {10, 0, 0}, 0.04},
                           {"linear", 11, {10, 0, 0}, 0.04},  {"linear", 1, {12, 2, 0}, 0.4},
                           {"linear", 2, {12, 2, 0}, 0.4},    {"linear", 7, {12, 2, 0}, 0.22},
                           {"cosine", 0, {8, 0, 0}, 0.4},     {"cosine", 2, {8, 0, 0}, quarter},
                           {"cosine", 4, {8, 0, 0}, 0.22},    {"cosine", 8, {8, 0, 0}, 0.04},
                           {"cosine", 100, {8, 0, 0}, 0.04},  {"cosine", 0, {12, 4, 0}, 0.1},
                           {"cosine", 4, {12, 4, 0}, 0.4},    {"cosine", 8, {12, 4, 0}, 0.22},
                           {"cosine", 5, {5, 5, 0}, 0.4},     {"cosine", 0, {1, 0, 0}, 0.4},
                           {"cosine", 0, {0, 0, 0}, 0.4},     {"wsd", 0, {10, 2, 4}, 0.2},
                           {"wsd", 2, {10, 2, 4}, 0.4},       {"wsd", 6, {10, 2, 4}, 0.4},
                           {"wsd", 8, {10, 2, 4}, 0.22},      {"wsd", 10, {10, 2, 4}, 0.04},
                           {"wsd", 11, {10, 2, 4}, 0.04},     {"wsd", 9, {10, 0, 0}, 0.4},
                           {"wsd", 5, {10, 0, 10}, 0.22},     {"wsd", 9, {10, 0, 1}, 0.4}}) {
    CAPTURE(std::string(corner.kind));
    CAPTURE(corner.step);
    CHECK(rate(corner.kind, corner.step, corner.lengths) ==
          doctest::Approx(corner.rate).epsilon(1e-12));
  }
  CHECK(rate("cosine", 8, {8, 0, 0}, 0) == doctest::Approx(0));
  CHECK(rate("linear", 4, {8, 0, 0}, 1) == 0.4);
}

TEST_CASE("optim: cosine is the peers' rule, step by step") {
  constexpr double lr = 0.4, low = 0.1 * lr, pi = 3.14159265358979323846;
  for (std::int64_t warmup : {0, 1, 10})
    for (std::int64_t s = 0; s < 60; ++s) {
      const auto step = static_cast<double>(s), w = static_cast<double>(warmup);
      const double expected =
          s < warmup
              ? lr * (step + 1) / w
              : low + (lr - low) * (1 + std::cos(pi * (step - w) / std::max(1.0, 60 - w))) / 2;
      CHECK(rate("cosine", s, {60, warmup, 0}) == doctest::Approx(expected).epsilon(1e-13));
    }
}

TEST_CASE("optim: the loss scaler") {
  LossScaler off(false);
  off.update(false);
  off.restore(8, 3);
  CHECK(off.scale() == 1);
  CHECK_FALSE(off.active());

  LossScaler scaler(true);
  CHECK(scaler.scale() == 65536);
  for (int i = 0; i < 1999; ++i) scaler.update(true);
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.good_steps() == 1999);
  LossScaler resumed(true);
  resumed.restore(scaler.scale(), scaler.good_steps());
  for (LossScaler* one : {&scaler, &resumed}) {
    one->update(true);
    CHECK(one->scale() == 131072);
    CHECK(one->good_steps() == 0);
  }
  scaler.update(true);
  scaler.update(false);
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.good_steps() == 0);  // the count begins anew
  for (int i = 0; i < 1999; ++i) scaler.update(true);
  CHECK(scaler.scale() == 65536);
  for (int i = 0; i < 40; ++i) scaler.update(false);
  CHECK(scaler.scale() == 1);
}
