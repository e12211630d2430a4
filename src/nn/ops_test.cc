// Each fused operation against its twin of plain torch ops: values and gradients, awkward sizes, no
// tokens among them (a context rank may have none).
#include "nn/ops.h"

#include <doctest/doctest.h>

#include "nn/destination.h"
#include "nn/gemm.h"
#include "nn/kernels.h"
#include "nn/plain.h"
#include "nn/test_twins.h"

using namespace tutti::nn;
using torch::Tensor;
using tutti::nn::testing::check_twins, tutti::nn::testing::distance, tutti::nn::testing::evaluate;
using tutti::nn::testing::Function, tutti::nn::testing::Outcome, tutti::nn::testing::Values;

namespace {

Tensor random(std::vector<std::int64_t> shape) { return torch::randn(shape); }

}  // namespace

TEST_CASE("ops: add_norm equals its twin") {
  for (const auto& [rows, dim] : {std::pair{1, 1}, {0, 5}, {3, 5}, {7, 16}, {130, 33}, {300, 64}})
    for (bool layer : {false, true})
      for (bool add : {false, true}) {
        CAPTURE(rows);
        CAPTURE(dim);
        CAPTURE(layer);
        CAPTURE(add);
        check_twins(
            [&](const Values& v) {
              const auto [sum, out] =
                  add_norm(v[0], add ? v[1] : Tensor(), v[2], layer ? v[3] : Tensor(), 1e-5);
              Values all{sum, out};
              if (!add) all.push_back(v[1]);
              if (!layer) all.push_back(v[3]);
              return all;
            },
            {random({rows, dim}), random({rows, dim}), random({dim}), random({dim})}, 1e-5);
      }
}

TEST_CASE("ops: linear equals its twin, alone, packed and transposed") {
  for (const auto& [tokens, in, out] : {std::tuple{1, 1, 1}, {0, 7, 3}, {5, 7, 3}, {33, 16, 48}}) {
    CAPTURE(tokens);
    CAPTURE(in);
    CAPTURE(out);
    check_twins([](const Values& v) { return Values{tutti::nn::linear(v[0], {{v[1], v[2]}})}; },
                {random({tokens, in}), random({out, in}), random({out})});
    check_twins(
        [](const Values& v) { return Values{tutti::nn::linear(v[0], {{v[1], v[2], true}})}; },
        {random({tokens, in}), random({in, out}), random({out})});
    check_twins(
        [](const Values& v) {
          return Values{tutti::nn::linear(v[0], {{v[1], v[2]}, {v[3], {}}, {v[4], v[5]}})};
        },
        {random({tokens, in}), random({out, in}), random({out}), random({2, in}), random({out, in}),
         random({out})});
  }
}

TEST_CASE("ops: neighbouring weights run as one product with the same result") {
  const Tensor x = random({9, 8}), packed = random({12, 8});
  Values parts{packed.narrow(0, 0, 6), packed.narrow(0, 6, 2), packed.narrow(0, 8, 4)};
  const Tensor together = tutti::nn::linear(x, {{parts[0], {}}, {parts[1], {}}, {parts[2], {}}});
  for (auto& part : parts) part = part.clone();
  const Tensor apart = tutti::nn::linear(x, {{parts[0], {}}, {parts[1], {}}, {parts[2], {}}});
  CHECK(distance(together, apart) < 1e-6);
}

TEST_CASE("ops: swiglu and gelu equal their twins") {
  for (const auto& [rows, dim] : {std::pair{1, 1}, {0, 7}, {5, 7}, {65, 48}}) {
    check_twins([](const Values& v) { return Values{swiglu(v[0])}; },
                {random({rows, 2 * dim}) * 3});
    check_twins([](const Values& v) { return Values{tutti::nn::gelu(v[0])}; },
                {random({rows, dim}) * 3});
  }
  check_twins(
      [](const Values& v) { return Values{swiglu(v[0]), tutti::nn::gelu(v[0])}; },
      {torch::tensor({-100.f, -20.f, 0.f, 20.f, 100.f, 1.f, 2.f, 3.f, 1.f, 1.f}).view({1, -1})});
}

TEST_CASE("ops: attention equals its twin") {
  struct Case {
    Heads heads;
    bool rotated, documents;
  };
  for (const auto& [h, rotated, documents] : {Case{{1, 1, 1, 1, 2}, true, false},
                                              {{2, 0, 4, 2, 6}, true, false},
                                              {{2, 5, 4, 2, 6}, true, false},
                                              {{1, 64, 2, 2, 32}, false, false},
                                              {{2, 130, 4, 1, 16}, true, false},
                                              {{2, 67, 4, 2, 8}, true, true},
                                              {{1, 200, 2, 1, 34}, false, true}}) {
    CAPTURE(h.sequence);
    CAPTURE(h.heads);
    Rope rope;
    if (rotated) {
      const Tensor angle = random({h.sequence, h.dim / 2});
      rope = {angle.cos(), angle.sin()};
    }
    const Tensor first =
        documents
            ? first_keys((torch::arange(h.sequence) / 29).to(torch::kInt).expand({h.batch, -1}))
            : Tensor();
    const Heads heads = h;
    check_twins([&](const Values& v) { return Values{attention(v[0] * 1, heads, rope, first)}; },
                {random({h.tokens(), h.row()})}, 5e-6);
  }
}

TEST_CASE("ops: norm_heads equals its twin") {
  for (const Heads& h : {Heads{2, 5, 4, 2, 6}, {2, 0, 4, 2, 6}})
    check_twins([&](const Values& v) { return Values{norm_heads(v[0], h, v[1], v[2], 1e-6)}; },
                {random({h.tokens(), h.row()}), random({6}), random({6})}, 5e-6);
}

TEST_CASE("ops: embedding adds the rows of repeated ids") {
  const Tensor all = torch::tensor({3, 0, 3, 3, 1}, torch::kLong);
  for (const Tensor& ids : {all, all.narrow(0, 0, 0)})
    check_twins([](const Values& v) { return Values{embedding(v[1], v[0], Use::only)}; },
                {random({5, 37}), ids});
}

TEST_CASE("ops: head_loss equals its twin and skips targets below 0") {
  for (const auto& [tokens, dim, vocab] :
       {std::tuple{1, 3, 2}, {0, 3, 2}, {40, 16, 17}, {9, 5, 300}}) {
    Tensor targets = torch::randint(vocab, {tokens}, torch::kLong);
    if (tokens > 1) targets.narrow(0, 1, tokens / 2).fill_(-1);
    check_twins([](const Values& v) { return Values{head_loss(v[0], v[1], v[2], Use::only)}; },
                {random({tokens, dim}), random({vocab, dim}), targets}, 5e-6);
  }
}

TEST_CASE("ops: first_keys is where each document begins") {
  const Tensor documents = torch::tensor({{4, 4, 7, 7, 7, 1}, {0, 0, 0, 0, 0, 0}}, torch::kInt);
  CHECK(first_keys(documents).equal(
      torch::tensor({{0, 0, 2, 2, 2, 5}, {0, 0, 0, 0, 0, 0}}, torch::kInt)));
}

namespace {

struct Sink : GradSink {
  Tensor parameter, grad;
  bool accumulate = false;
  int told = 0;
  Target target(const Tensor& asked) override {
    if (!asked.is_same(parameter)) return {};
    return {grad, accumulate};
  }
  void ready(const Tensor&) override { ++told; }
};

}  // namespace

TEST_CASE("ops: a sink receives weight gradients, overwriting or adding") {
  for (bool plain : {false, true})
    for (bool accumulate : {false, true}) {
      PlainOps ops(plain);
      Tensor weight = random({3, 4}).requires_grad_(true), bias = random({3}).requires_grad_(true);
      const Tensor x = random({5, 4});
      tutti::nn::linear(x, {{weight, bias}}).sum().backward();
      const Tensor expected = weight.grad().clone(), bias_grad = bias.grad().clone();
      weight.mutable_grad() = Tensor();
      Sink sink;
      sink.parameter = weight;
      sink.accumulate = accumulate;
      sink.grad = torch::full({3, 4}, accumulate ? 2.0 : NAN);
      {
        GradSinkScope scope(&sink);
        tutti::nn::linear(x, {{weight, bias}}).sum().backward();
      }
      CHECK(sink.told == 1);
      CHECK_FALSE(weight.grad().defined());
      CHECK(distance(bias.grad(), bias_grad * 2) < 1e-6);  // left to autograd
      CHECK(distance(sink.grad, expected + (accumulate ? 2.0 : 0.0)) < 1e-6);
    }
}

TEST_CASE("ops: the two uses of a tied weight reach the sink as one gradient") {
  for (bool plain : {false, true}) {
    PlainOps ops(plain);
    Tensor weight = random({6, 4}).requires_grad_(true);
    const Tensor ids = torch::tensor({1, 5, 1}, torch::kLong);
    const auto run = [&] {
      head_loss(embedding(ids, weight, Use::second), weight, ids, Use::first).backward();
    };
    run();
    Sink sink;
    sink.parameter = weight;
    sink.grad = torch::full({6, 4}, NAN);
    GradSinkScope scope(&sink);
    run();
    CHECK(sink.told == 1);
    CHECK(distance(sink.grad, weight.grad()) < 1e-6);
  }
}

TEST_CASE("kernels: all levels of this processor agree") {
  int count = 0;
  const auto* levels = kernel_levels(&count);
  CHECK(count >= 1);
  const Tensor x = random({7, 37}), w = random({37});
  for (int i = 0; i < count; ++i) {
    CAPTURE(levels[i]->level);
    Tensor out = torch::empty_like(x), rstd = torch::empty({7});
    levels[i]->rms_norm(x.data_ptr<float>(), nullptr, w.data_ptr<float>(), nullptr,
                        out.data_ptr<float>(), rstd.data_ptr<float>(), 7, 37, 1e-5f);
    CHECK(distance(out, plain::add_norm(x, w, {}, 1e-5)) < 1e-6);
    Tensor p = x.clone();
    for (int r = 0; r < 7; ++r) levels[i]->softmax(p.data_ptr<float>() + r * 37, 1, 0, 37, 37);
    CHECK(distance(p, torch::softmax(x, -1)) < 1e-6);
  }
}

TEST_CASE("gemm: equals the BLAS for every transposition, edge and beta, inside strided memory") {
  for (const auto& [m, n, k] : {std::tuple{1, 16, 1},
                                {8, 48, 192},
                                {13, 64, 200},
                                {70, 80, 33},
                                {521, 32, 17},
                                {5, 7, 3},
                                {66, 112, 385}})
    for (int which = 0; which < 8; ++which) {
      const bool ta = which & 1, tb = which & 2;
      const float beta = which & 4 ? 1.0f : 0.0f;
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(k);
      CAPTURE(which);
      const Tensor a = random({ta ? k : m, (ta ? m : k) + 3}),
                   b = random({tb ? n : k, (tb ? k : n) + 5});
      Tensor ours = random({m, n + 2}), theirs = ours.clone();
      if (beta == 0) ours.narrow(1, 0, n).fill_(NAN);
      const Matrix left{a.data_ptr<float>(), a.size(1), ta},
          right{b.data_ptr<float>(), b.size(1), tb};
      gemm(m, n, k, left, right, beta, ours.data_ptr<float>(), n + 2);
      blas_gemm(m, n, k, left, right, beta, theirs.data_ptr<float>(), n + 2);
      CHECK(distance(ours, theirs) < 1e-6);
      CHECK(ours.narrow(1, n, 2).equal(theirs.narrow(1, n, 2)));
    }
}

TEST_CASE("gemm: transposed_copy") {
  for (const auto& [rows, columns] : {std::pair{16, 16}, {17, 35}, {1, 40}, {40, 3}}) {
    const Tensor in = random({rows, columns + 1});
    Tensor out = torch::empty({columns, rows});
    transposed_copy(in.data_ptr<float>(), columns + 1, out.data_ptr<float>(), rows, rows, columns);
    CHECK(out.equal(in.narrow(1, 0, columns).t()));
  }
}
