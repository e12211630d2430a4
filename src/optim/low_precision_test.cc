// Moments kept in bf16 against a slow twin, and that no bit depends on the layout.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "optim/kernels.h"
#include "optim/optimizer.h"

using namespace tutti;
using namespace tutti::optim;

namespace {

torch::Tensor draws_of(const std::string& name, std::int64_t count, torch::ScalarType type) {
  const RandomStream stream(3, name);
  auto values = torch::empty({count}, torch::kDouble);
  for (std::int64_t i = 0; i < count; ++i)
    values.data_ptr<double>()[i] = stream.normal(static_cast<std::uint64_t>(i));
  return values.to(type);
}

// kernels.h, word for word.
std::uint16_t slowly_rounded(float value, std::int64_t place, const RandomStream& stream) {
  const auto at = static_cast<std::uint64_t>(place);
  const auto words = stream.words(at / 4096);
  std::uint32_t x = static_cast<std::uint32_t>(at % 4096) ^ words[0];
  x = (x ^ x >> 16) * 0x7FEB352D;
  x = ((x ^ x >> 15) + words[1]) * 0x846CA68B;
  const std::uint32_t draw = (x ^ x >> 16) & 0xFFFF;
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + draw) >> 16);
}

float widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

recipe::Optimizer kept_in(const std::string& state, const std::string& name = "adamw") {
  recipe::Optimizer recipe;
  recipe.name = name;
  recipe.state = state;
  return recipe;
}

}  // namespace

TEST_CASE("bf16 moments: draws are the stream's words, wherever a run begins and ends") {
  const auto x = draws_of("x", 2000, torch::kFloat);
  const RandomStream stream(7, "moments/w", (std::uint64_t{5} << 32) + 9);
  const Draws draws{stream.key(), (std::uint64_t{5} << 32) + 9};
  std::vector<std::uint16_t> out(2000);
  for (const std::int64_t place : {std::int64_t{0}, std::int64_t{1}, std::int64_t{255},
                                   std::int64_t{4000}, (std::int64_t{1} << 41) + 77})
    for (const std::int64_t count : {1, 255, 256, 700, 2000}) {
      round_bf16(x.const_data_ptr<float>(), out.data(), count, draws, place);
      int wrong = 0;
      for (std::int64_t i = 0; i < count; ++i)
        wrong += out[static_cast<std::size_t>(i)] !=
                 slowly_rounded(x.const_data_ptr<float>()[i], place + i, stream);
      CHECK(wrong == 0);
    }
}

TEST_CASE("bf16 moments: rounding is right on average, and leaves what is no number alone") {
  constexpr std::int64_t count = 1 << 16;
  const Draws draws{99, 1};
  std::vector<std::uint16_t> out(count);
  for (const float value : {1.0F + 1.0F / 1024, -3.1F, 1e-20F}) {  // 1/8 of the way up
    const std::vector<float> x(count, value);
    round_bf16(x.data(), out.data(), count, draws, 0);
    double sum = 0;
    for (const std::uint16_t bits : out) sum += widened(bits);
    CHECK(std::abs(sum / count / value - 1) < 1e-4);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0F, -0.0F, 1.5F, infinity, -infinity}) {
    const std::vector<float> x(count, value);
    round_bf16(x.data(), out.data(), count, draws, 0);
    for (const std::uint16_t bits : out) REQUIRE(widened(bits) == value);
  }
  const std::vector<float> x(count, std::bit_cast<float>(0x7FFFFFFFU));
  round_bf16(x.data(), out.data(), count, draws, 0);
  for (const std::uint16_t bits : out) REQUIRE(std::isnan(widened(bits)));
}

// beta2 = 0.999 moves v by less than half of bf16's last place when it is near g^2.
TEST_CASE("bf16 moments: the second moment does not stall") {
  constexpr std::int64_t count = 4096;
  recipe::Optimizer recipe = kept_in("bf16");
  recipe.beta2 = 0.999;
  auto master = torch::zeros({count});
  const auto gradient = torch::ones({count});
  auto optimizer = make_optimizer(recipe, {{"w", 0, count, {count}}}, master);
  const torch::Tensor v = optimizer->state()[1].value;
  CHECK((v.scalar_type() == torch::kBFloat16));
  auto nearest = torch::zeros({1}, torch::kBFloat16);
  for (int step = 1; step <= 1500; ++step) {
    optimizer->step(master, gradient, step, 0, 1);
    nearest = (nearest.to(torch::kFloat) * 0.999 + 0.001).to(torch::kBFloat16);
  }
  const double exact = 1 - std::pow(0.999, 1500);  // 0.777
  CHECK(std::abs(v.to(torch::kDouble).mean().item<double>() / exact - 1) < 0.01);
  CHECK(nearest.item<double>() < 0.6 * exact);
}

TEST_CASE("bf16 moments: an element's bits depend on its place in the tensor alone") {
  constexpr std::int64_t count = 40000;  // above the smallest chunk of a thread
  const auto weights = draws_of("w", count, torch::kFloat),
             gradient = draws_of("g", count, torch::kFloat);
  for (const char* name : {"adamw", "sgd"}) {
    CAPTURE(std::string(name));
    const auto updated = [&](std::int64_t begin, std::int64_t end, std::int64_t offset,
                             const std::vector<Run>& runs = {}) {
      auto master = torch::zeros({offset + end - begin + 5}), g = torch::zeros_like(master);
      const Segment segment{"w", offset, end - begin, {1, count}, false, runs.empty() ? begin : 0,
                            runs};
      master.narrow(0, offset, end - begin).copy_(weights.slice(0, begin, end));
      g.narrow(0, offset, end - begin).copy_(gradient.slice(0, begin, end));
      auto optimizer = make_optimizer(kept_in("bf16", name), {segment}, master, {}, 4);
      for (int step = 1; step <= 3; ++step) optimizer->step(master, g, step, 0.01, 0.3);
      std::vector<torch::Tensor> all{master.narrow(0, offset, end - begin).clone()};
      for (const NamedTensor& kept : optimizer->state()) all.push_back(kept.value.clone());
      return all;
    };
    const auto all = updated(0, count, 0);
    const auto same = [&](const std::vector<torch::Tensor>& some, std::int64_t begin,
                          std::int64_t end) {
      for (std::size_t i = 0; i < all.size(); ++i)
        CHECK(torch::equal(some[i], all[i].slice(0, begin, end)));
    };
    for (auto [begin, end, offset] : std::vector<std::array<std::int64_t, 3>>{
             {0, 1, 0}, {1, 2, 3}, {5, 38, 1}, {100, 763, 7}, {3, count, 0}, {39990, count, 32}}) {
      same(updated(begin, end, offset), begin, end);
      // The same elements as three runs of a part.
      const std::int64_t third = (end - begin) / 3;
      same(updated(begin, end, offset,
                   {{0, begin}, {third, begin + third}, {2 * third, begin + 2 * third}}),
           begin, end);
    }
    const int threads = at::get_num_threads();
    for (int other : {1, 2, 3}) {
      at::set_num_threads(other);
      same(updated(0, count, 0), 0, count);
    }
    at::set_num_threads(threads);
    CHECK_FALSE(torch::equal(updated(5, 38, 1)[1], updated(5, 38, 1, {{0, 6}})[1]));
  }
}

TEST_CASE("bf16 moments: every rule stays near fp32's, and what it keeps is half as large") {
  constexpr std::int64_t count = 32 * 64;
  const std::vector<Segment> segments{{"h.w", 0, count - 64, {31, 64}},
                                      {"b", count - 64, 64, {64}}};
  for (const char* name : {"adamw", "sgd", "muon"})
    for (const auto type : {torch::kFloat, torch::kDouble}) {
      CAPTURE(std::string(name));
      const auto start = draws_of("w", count, type);
      const auto trained = [&](const std::string& state) {
        auto master = start.clone();
        auto optimizer = make_optimizer(kept_in(state, name), segments, master);
        for (int step = 1; step <= 10; ++step)
          optimizer->step(master, draws_of(str("g", step), count, type), step, 0.01, 1);
        std::int64_t bytes = 0;
        for (const NamedTensor& kept : optimizer->state())
          bytes += kept.value.numel() * static_cast<std::int64_t>(kept.value.element_size());
        return std::pair{master, bytes};
      };
      const auto [exact, whole] = trained("fp32");
      const auto [near, less] = trained("bf16");
      CHECK(whole == less * (type == torch::kFloat ? 2 : 4));
      const auto moved = (exact - start).norm().item<double>();
      CHECK((near - exact).norm().item<double>() < 0.02 * moved);
      CHECK_FALSE(torch::equal(near, exact));
    }
}
