// Update rules against torch's own and against written-out loops.
#include "optim/optimizer.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"

using namespace tutti;
using namespace tutti::optim;

namespace {

torch::Tensor draws(const std::string& name, std::int64_t count, torch::ScalarType dtype,
                    std::uint64_t step = 0) {
  const RandomStream stream(3, name, step);
  auto values = torch::empty({count}, torch::kDouble);
  for (std::int64_t i = 0; i < count; ++i)
    values.data_ptr<double>()[i] = stream.normal(static_cast<std::uint64_t>(i));
  return values.to(dtype);
}

// Largest |a - b| / max(1, |b|).
double distance(const torch::Tensor& a, const torch::Tensor& b) {
  const auto x = a.to(torch::kDouble), y = b.to(torch::kDouble);
  return ((x - y).abs() / y.abs().clamp_min(1)).max().item<double>();
}

// A matrix and a vector with a gap between them.
const std::vector<Segment>& two_segments() {
  static const std::vector<Segment> all{{"w", 0, 7 * 9, {7, 9}}, {"b", 64, 11, {11}}};
  return all;
}
constexpr std::int64_t total = 80;

torch::Tensor gradient_of(std::int64_t step, torch::ScalarType dtype) {
  auto g = draws("gradient", total, dtype, static_cast<std::uint64_t>(step));
  g[63] = 0;  // the gaps
  g.narrow(0, 75, 5).zero_();
  return g;
}

torch::Tensor first_weights(torch::ScalarType dtype) {
  auto w = draws("weights", total, dtype);
  w[63] = 0;
  w.narrow(0, 75, 5).zero_();
  return w;
}

torch::Tensor view_of(const torch::Tensor& flat, const Segment& segment) {
  return flat.narrow(0, segment.offset, segment.size).view(segment.shape);
}

double scheduled(std::int64_t step) { return 0.01 * (1 + 0.1 * static_cast<double>(step)); }

// 20 steps of ours beside torch's; the largest distance of the weights. `peer` makes torch's
// optimizer for (matrix, vector); `set_lr` gives it the step's rate.
template <class Peer, class SetLr>
double distance_from_peer(const recipe::Optimizer& recipe, torch::ScalarType dtype,
                          const Peer& peer, const SetLr& set_lr) {
  constexpr double scale = 0.25;
  auto master = first_weights(dtype);
  auto ours = make_optimizer(recipe, two_segments(), master);
  std::vector<torch::Tensor> theirs;
  for (const Segment& segment : two_segments())
    theirs.push_back(view_of(master, segment).clone().set_requires_grad(true));
  auto optimizer = peer(theirs);
  double worst = 0;
  for (std::int64_t step = 1; step <= 20; ++step) {
    const auto gradient = gradient_of(step, dtype);
    set_lr(optimizer, scheduled(step));
    ours->step(master, gradient, step, scheduled(step), scale);
    for (std::size_t i = 0; i < theirs.size(); ++i)
      theirs[i].mutable_grad() = view_of(gradient, two_segments()[i]) * scale;
    optimizer.step();
    for (std::size_t i = 0; i < theirs.size(); ++i)
      worst = std::max(worst, distance(view_of(master, two_segments()[i]), theirs[i].detach()));
  }
  CHECK(master[63].item<double>() == 0);
  CHECK(master.narrow(0, 75, 5).abs().max().item<double>() == 0);
  return worst;
}

double adamw_distance(torch::ScalarType dtype, double weight_decay) {
  recipe::Optimizer recipe;
  recipe.weight_decay = weight_decay;
  const auto options = [&](double decay) {
    auto chosen = std::make_unique<torch::optim::AdamWOptions>(scheduled(1));
    chosen->betas({recipe.beta1, recipe.beta2}).eps(recipe.eps).weight_decay(decay);
    return chosen;
  };
  return distance_from_peer(
      recipe, dtype,
      [&](const std::vector<torch::Tensor>& theirs) {  // vectors do not decay
        std::vector<torch::optim::OptimizerParamGroup> groups;
        groups.emplace_back(std::vector{theirs[0]}, options(weight_decay));
        groups.emplace_back(std::vector{theirs[1]}, options(0));
        return torch::optim::AdamW(groups);
      },
      [](torch::optim::AdamW& optimizer, double lr) {
        for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
      });
}

double sgd_distance(torch::ScalarType dtype, double momentum, bool nesterov) {
  recipe::Optimizer recipe;
  recipe.name = "sgd";
  recipe.momentum = momentum;
  recipe.nesterov = nesterov;
  recipe.weight_decay = 0;
  return distance_from_peer(
      recipe, dtype,
      [&](const std::vector<torch::Tensor>& theirs) {
        return torch::optim::SGD(
            theirs, torch::optim::SGDOptions(scheduled(1)).momentum(momentum).nesterov(nesterov));
      },
      [](torch::optim::SGD& optimizer, double lr) {
        for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
      });
}

}  // namespace

TEST_CASE("optim: adamw is torch's AdamW") {
  for (double decay : {0.0, 0.1}) {
    CHECK(adamw_distance(torch::kFloat, decay) < 1e-6);
    CHECK(adamw_distance(torch::kDouble, decay) < 1e-12);
  }
}

TEST_CASE("optim: sgd is torch's SGD") {
  for (bool nesterov : {false, true}) {
    CHECK(sgd_distance(torch::kFloat, 0.9, nesterov) < 1e-6);
    CHECK(sgd_distance(torch::kDouble, 0.9, nesterov) < 1e-12);
  }
  CHECK(sgd_distance(torch::kDouble, 0, false) < 1e-12);
}

TEST_CASE("optim: sgd decays matrices only, decoupled") {
  recipe::Optimizer recipe;
  recipe.name = "sgd";
  recipe.weight_decay = 0.5;
  auto master = torch::ones({total}, torch::kDouble);
  auto optimizer = make_optimizer(recipe, two_segments(), master);
  optimizer->step(master, torch::zeros_like(master), 1, 0.1, 1);
  CHECK(master[0].item<double>() == doctest::Approx(0.95));
  CHECK(master[64].item<double>() == 1);
}

TEST_CASE("optim: an element's bits depend on neither its place nor its neighbours nor threads") {
  constexpr std::int64_t count = 40000;  // above the smallest chunk of a thread
  const auto weights = draws("w", count, torch::kFloat),
             gradient = draws("g", count, torch::kFloat);
  for (const char* name : {"adamw", "sgd"}) {
    recipe::Optimizer recipe;
    recipe.name = name;
    // The elements [begin, end), at `offset` of a buffer, as a matrix.
    const auto updated = [&](std::int64_t begin, std::int64_t end, std::int64_t offset) {
      auto master = torch::zeros({offset + end - begin + 5}), g = torch::zeros_like(master);
      const Segment segment{"w", offset, end - begin, {1, end - begin}};
      view_of(master, segment)[0].copy_(weights.slice(0, begin, end));
      view_of(g, segment)[0].copy_(gradient.slice(0, begin, end));
      auto optimizer = make_optimizer(recipe, {segment}, master);
      for (int step = 1; step <= 3; ++step) optimizer->step(master, g, step, 0.01, 0.3);
      return view_of(master, segment)[0].clone();
    };
    const auto all = updated(0, count, 0);
    CHECK_FALSE(torch::equal(all, weights));
    for (auto [begin, end, offset] : std::vector<std::array<std::int64_t, 3>>{{0, 1, 0},
                                                                              {1, 2, 3},
                                                                              {0, 17, 16},
                                                                              {5, 38, 1},
                                                                              {100, 163, 7},
                                                                              {3, count, 0},
                                                                              {39990, count, 32}})
      CHECK(torch::equal(updated(begin, end, offset), all.slice(0, begin, end)));
    const int threads = at::get_num_threads();
    for (int other : {1, 2, 3}) {
      at::set_num_threads(other);
      CHECK(torch::equal(updated(0, count, 0), all));
    }
    at::set_num_threads(threads);
  }
}

TEST_CASE(
    "optim: the state is named, shaped and, written into a new optimizer, continues the run") {
  for (const char* name : {"adamw", "sgd", "muon"}) {
    CAPTURE(std::string(name));
    recipe::Optimizer recipe;
    recipe.name = name;
    auto master = first_weights(torch::kFloat);
    auto first = make_optimizer(recipe, two_segments(), master);
    for (int step = 1; step <= 3; ++step)
      first->step(master, gradient_of(step, torch::kFloat), step, 0.01, 1);
    auto copy = master.clone();
    auto second = make_optimizer(recipe, two_segments(), copy);
    auto from = first->state(), to = second->state();
    REQUIRE(from.size() == to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      CHECK(from[i].name == to[i].name);
      CHECK(from[i].name.starts_with("optimizer."));
      CHECK(from[i].value.is_contiguous());
      CHECK(from[i].value.abs().sum().item<double>() > 0);
      to[i].value.copy_(from[i].value);
    }
    first->step(master, gradient_of(4, torch::kFloat), 4, 0.01, 1);
    second->step(copy, gradient_of(4, torch::kFloat), 4, 0.01, 1);
    CHECK(torch::equal(master, copy));
  }
  const auto like = torch::zeros({total});
  auto adamw = make_optimizer({}, two_segments(), like);
  std::vector<std::string> names;
  for (const auto& tensor : adamw->state()) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"optimizer.exp_avg/w", "optimizer.exp_avg/b",
                                          "optimizer.exp_avg_sq/w", "optimizer.exp_avg_sq/b"});
  CHECK(adamw->state()[0].value.numel() == 7 * 9);
  CHECK(adamw->state()[0].segment == 0);
}

TEST_CASE("optim: an unknown rule is refused") {
  recipe::Optimizer recipe;
  recipe.name = "adagrad";
  CHECK_THROWS_WITH_AS(make_optimizer(recipe, {}, torch::zeros({1})),
                       doctest::Contains("must be one of adamw, muon, sgd"), ConfigError);
}

TEST_CASE("optim: orthogonalise brings singular values near 1") {
  const std::vector<std::array<std::int64_t, 2>> shapes{{32, 32}, {16, 64}, {64, 16},
                                                        {1, 10},  {10, 1},  {128, 48}};
  for (auto [rows, columns] : shapes)
    for (double size : {1e-3, 1.0, 1e4}) {
      auto matrix = draws("m", rows * columns, torch::kFloat).view({rows, columns}) * size;
      if (rows < columns) matrix *= torch::linspace(1, 0.05, rows).unsqueeze(1);  // far from it
      const auto result = orthogonalise(matrix);
      CAPTURE(rows);
      CAPTURE(columns);
      CHECK(result.sizes() == matrix.sizes());
      const auto values = torch::linalg_svdvals(result.to(torch::kDouble));
      CHECK(values.max().item<double>() < 1.3);
      // A square matrix of draws has singular values near 0, which five steps do not lift.
      if (rows != columns) CHECK(values.min().item<double>() > 0.5);
      // The directions stay: the result is U S V' with the matrix's own U and V.
      const auto [u, s, v] = torch::linalg_svd(matrix.to(torch::kDouble), false);
      const auto within = u.t().mm(result.to(torch::kDouble)).mm(v.t());
      CHECK((within - within.diag().diag()).abs().max().item<double>() < 1e-3);
      CHECK(within.diag().min().item<double>() > -1e-3);
    }
  CHECK(orthogonalise(torch::zeros({3, 4})).abs().max().item<double>() == 0);
}

TEST_CASE("optim: muon takes hidden matrices and leaves the rest to adamw") {
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "transformer.h.0.mlp.c_fc.weight"})
    CHECK(is_hidden_matrix({name, 0, 4, {2, 2}}));
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight",
                           "transformer.wpe.weight"})
    CHECK_FALSE(is_hidden_matrix({name, 0, 4, {2, 2}}));
  CHECK_FALSE(is_hidden_matrix({"model.norm.weight", 0, 4, {4}}));
  CHECK_FALSE(is_hidden_matrix({"conv.weight", 0, 4, {1, 2, 2}}));

  recipe::Optimizer muon, adamw;
  muon.name = "muon";
  muon.lr = adamw.lr = 0.01;
  const std::vector<Segment> segments{
      {"h.w", 0, 64, {16, 4}}, {"wte", 64, 8, {2, 4}}, {"b", 80, 4, {4}}};
  const auto start = draws("w", 96, torch::kDouble), gradient = draws("g", 96, torch::kDouble);
  auto by_muon = start.clone(), by_adamw = start.clone();
  make_optimizer(muon, segments, start)->step(by_muon, gradient, 1, 0.005, 0.5);
  make_optimizer(adamw, segments, start)->step(by_adamw, gradient, 1, 0.005, 0.5);
  CHECK(torch::equal(by_muon.slice(0, 64, 96), by_adamw.slice(0, 64, 96)));
  // lr * matrix_lr / recipe lr = 0.01; tall: sqrt(16 / 4) = 2; nesterov: g + momentum * g.
  const auto w = view_of(start, segments[0]), g = view_of(gradient, segments[0]) * 0.5;
  const auto expected = w * (1 - 0.01 * 0.1) - 0.01 * 2 * orthogonalise(g * 1.95);
  CHECK(distance(view_of(by_muon, segments[0]), expected) < 1e-12);

  // The same numbers as [inputs, outputs]: 4 outputs of 16 inputs, no factor.
  auto turned = segments;
  turned[0].input_first = true;
  auto by_turned = start.clone();
  make_optimizer(muon, turned, start)->step(by_turned, gradient, 1, 0.005, 0.5);
  const auto plain = w * (1 - 0.01 * 0.1) - 0.01 * orthogonalise(g * 1.95);
  CHECK(distance(view_of(by_turned, segments[0]), plain) < 1e-12);
}

TEST_CASE("optim: peers share muon's work, each matrix once, and all get the bits of one") {
  recipe::Optimizer muon;
  muon.name = "muon";
  std::vector<Segment> segments;
  std::int64_t size = 0;
  for (const std::int64_t rows : {40, 3, 8, 8, 20}) {
    segments.push_back({str("w", segments.size()), size, rows * 8, {rows, 8}});
    size += (rows * 8 + 15) / 16 * 16;
    segments.push_back({str("norm", segments.size()), size, 8, {8}});
    size += 16;
  }
  const auto start = draws("w", size, torch::kFloat), gradient = draws("g", size, torch::kFloat);
  auto alone = start.clone();
  make_optimizer(muon, segments, start)->step(alone, gradient, 1, 0.01, 1);
  for (const int ranks : {2, 3, 5, 8}) {
    // Rank after rank: what one hands on is kept for those that come later, and the last, who has
    // waited for all, is compared.
    std::vector<torch::Tensor> handed(static_cast<std::size_t>(ranks));
    torch::Tensor weights;
    for (int round = 0; round < 2; ++round)
      for (int rank = 0; rank < ranks; ++rank) {
        weights = start.clone();
        Peers peers{rank, ranks, [&](torch::Tensor values, int root) {
                      auto& kept = handed[static_cast<std::size_t>(root)];
                      if (root == rank) kept = values.clone();
                      if (kept.defined()) values.copy_(kept);
                    }};
        make_optimizer(muon, segments, start, peers)->step(weights, gradient, 1, 0.01, 1);
      }
    CHECK_MESSAGE(torch::equal(weights, alone), ranks);
  }
}

TEST_CASE("adamw: a second moment that is frozen stays, and updates are linear in the gradient") {
  recipe::Optimizer recipe;
  recipe.weight_decay = 0;
  const auto after = [&](double scale) {
    auto w = first_weights(torch::kDouble);
    const auto optimizer = make_optimizer(recipe, two_segments(), w);
    optimizer->freeze_after(2);
    torch::Tensor variance, before;
    for (std::int64_t step = 1; step <= 5; ++step) {
      if (step == 3) variance = optimizer->state()[2].value.clone();
      if (step == 5) before = w.clone();
      optimizer->step(w, gradient_of(step, torch::kDouble), step, 0.01, step == 5 ? scale : 1);
    }
    CHECK(optimizer->state()[2].name == "optimizer.exp_avg_sq/w");
    CHECK(optimizer->state()[2].value.equal(variance));
    return w - before;
  };
  const auto none = after(0), one = after(1), two = after(2);
  CHECK(distance(two - none, 2 * (one - none)) < 1e-12);
  CHECK((one - none).abs().max().item<double>() > 1e-4);
}

TEST_CASE("optim: a peer lost in the middle of an update leaves weights and state as they were") {
  recipe::Optimizer muon;
  muon.name = "muon";
  const std::vector<Segment> segments{{"h.w", 0, 64, {16, 4}}, {"b", 64, 4, {4}}};
  auto weights = draws("w", 80, torch::kFloat);
  const auto gradient = draws("g", 80, torch::kFloat);
  bool lost = false;
  const auto optimizer =
      make_optimizer(muon, segments, weights, {0, 2, [&](const torch::Tensor&, int) {
                                                 if (lost) throw WorldError("rank 1 is lost");
                                               }});
  optimizer->step(weights, gradient, 1, 0.01, 1);
  const auto copy = [&] {
    std::vector<torch::Tensor> all{weights.clone()};
    for (const NamedTensor& tensor : optimizer->state()) all.push_back(tensor.value.clone());
    return all;
  };
  const auto before = copy();
  lost = true;
  CHECK_THROWS_AS(optimizer->step(weights, gradient, 2, 0.01, 1), WorldError);
  const auto after = copy();
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(torch::equal(before[i], after[i]));
}
