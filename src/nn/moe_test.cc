// The stages of a mixture of experts: the fused loops against a dense reference, decisions against
// loops over numbers, losses against their formulas and finite differences.
#include "nn/moe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "nn/grad_sink.h"
#include "nn/test_twins.h"

using namespace tutti::nn;
using torch::Tensor;
using tutti::nn::testing::check_near, tutti::nn::testing::distance, tutti::nn::testing::evaluate;
using tutti::nn::testing::Values;
using Counts = std::vector<std::int64_t>;

namespace {

tutti::recipe::Moe moe_of(std::int64_t experts, std::int64_t experts_per_token) {
  tutti::recipe::Moe moe;
  moe.experts = experts;
  moe.experts_per_token = experts_per_token;
  return moe;
}

Counts numbers(const Tensor& x) {
  const Tensor flat = x.flatten().contiguous();
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

struct Sizes {
  std::int64_t tokens, embed, mlp, experts, k, chosen, capacity;
};

std::string to_text(const Sizes& s) {
  std::string text;
  for (const auto n : {s.tokens, s.embed, s.mlp, s.experts, s.k, s.chosen, s.capacity})
    text += std::to_string(n) + " ";
  return text;
}

// Only the first `chosen` experts get tokens.
const std::vector<Sizes> sizes = {
    {1, 1, 1, 1, 1, 1, 0},      {37, 24, 20, 5, 2, 5, 0},  {130, 33, 17, 8, 3, 8, 0},
    {37, 24, 20, 5, 2, 3, 0},   {37, 24, 20, 5, 2, 5, 11}, {130, 16, 16, 8, 8, 8, 3},
    {300, 64, 96, 16, 4, 9, 0}, {0, 8, 8, 3, 2, 3, 0},     {20, 9, 7, 6, 1, 1, 0}};

// Inputs of the whole layer: x, weights, gate, up, down.
Values inputs_of(const Sizes& s) {
  torch::manual_seed(3);
  return {torch::randn({s.tokens, s.embed}), torch::rand({s.tokens, s.k}),
          torch::randn({s.experts, s.mlp, s.embed}) * 0.3,
          torch::randn({s.experts, s.mlp, s.embed}) * 0.3,
          torch::randn({s.experts, s.embed, s.mlp}) * 0.3};
}

Tensor ids_of(const Sizes& s) {
  torch::manual_seed(4);
  return std::get<1>(torch::rand({s.tokens, s.chosen}).topk(s.k, -1));
}

Tensor layer(const Values& in, const SlotOrder& order) {
  return combine(experts_mlp(dispatch(in[0], order), order.counts, in[2], in[3], in[4]), in[1],
                 order);
}

// Every token through every expert; a token's own are then picked by their weight.
Tensor dense(const Values& in, const Tensor& ids, const Tensor& kept) {
  const Tensor gate = torch::einsum("td,emd->tem", {in[0], in[2]});
  const Tensor up = torch::einsum("td,emd->tem", {in[0], in[3]});
  const Tensor all = torch::einsum("tem,edm->ted", {gate * torch::sigmoid(gate) * up, in[4]});
  const Tensor weight = torch::zeros({ids.size(0), in[2].size(0)}, in[0].options())
                            .scatter_add(1, ids, in[1] * kept.to(in[1].scalar_type()));
  return torch::einsum("te,ted->td", {weight, all});
}

// d f / d x by central differences.
Tensor differences(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  Tensor gradient = torch::zeros_like(x);
  const double h = 1e-6;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    Tensor low = x.clone(), high = x.clone();
    low.flatten()[i] -= h, high.flatten()[i] += h;
    gradient.flatten()[i] = (f(high) - f(low)) / (2 * h);
  }
  return gradient;
}

void check_differences(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  const Tensor leaf = x.clone().requires_grad_(true);
  f(leaf).backward();
  CHECK(distance(leaf.grad(), differences(f, x)) < 1e-7);
}

class CountingSink : public GradSink {
 public:
  Target target(const Tensor& parameter) override {
    Tensor& place = places[parameter.unsafeGetTensorImpl()];
    if (!place.defined()) place = torch::full(parameter.sizes(), 2.0, parameter.scalar_type());
    return {place, accumulate};
  }
  void ready(const Tensor& parameter) override { ++told[parameter.unsafeGetTensorImpl()]; }

  bool accumulate = true;
  std::map<const c10::TensorImpl*, Tensor> places;
  std::map<const c10::TensorImpl*, int> told;
};

}  // namespace

TEST_CASE("moe: dispatch, experts and combine are the dense layer, fused and plain") {
  for (const Sizes& s : sizes) {
    CAPTURE(to_text(s));
    const Tensor ids = ids_of(s);
    const SlotOrder order = sort_slots(ids, s.experts, s.capacity);
    const Tensor kept = order.places >= 0;
    const auto ours = [&](const Values& in) -> Values { return {layer(in, order)}; };
    const auto theirs = [&](const Values& in) -> Values { return {dense(in, ids, kept)}; };
    const Values in = inputs_of(s);
    const auto expected = evaluate(theirs, in, torch::kDouble);
    check_near(evaluate(ours, in, torch::kDouble), expected, 1e-12);
    check_near(evaluate(ours, in, torch::kFloat), expected, 3e-6);
    const PlainOps plain;
    check_near(evaluate(ours, in, torch::kFloat), expected, 3e-6);
  }
}

TEST_CASE("moe: the plain layer's gradients are its differences") {
  const Sizes s{5, 3, 4, 4, 2, 4, 2};
  const SlotOrder order = sort_slots(ids_of(s), s.experts, s.capacity);
  Values in = inputs_of(s);
  for (auto& one : in) one = one.to(torch::kDouble);
  const Tensor direction = torch::randn({s.tokens, s.embed}).to(torch::kDouble);
  for (std::size_t i = 0; i < in.size(); ++i) {
    CAPTURE(i);
    check_differences(
        [&](const Tensor& x) {
          Values all = in;
          all[i] = x;
          return (layer(all, order) * direction).sum();
        },
        in[i]);
  }
}

TEST_CASE("moe: bits do not depend on what ran before, and repeat") {
  const Sizes s = sizes[6];
  const SlotOrder order = sort_slots(ids_of(s), s.experts);
  const auto run = [&] {
    return evaluate([&](const Values& in) -> Values { return {layer(in, order)}; }, inputs_of(s),
                    torch::kFloat);
  };
  const auto a = run(), b = run();
  CHECK(a.outputs[0].equal(b.outputs[0]));
  for (std::size_t i = 0; i < a.gradients.size(); ++i) CHECK(a.gradients[i].equal(b.gradients[i]));
}

TEST_CASE("moe: a sink is given each weight's gradient once, with rows or without") {
  for (const auto type : {torch::kFloat, torch::kDouble})
    for (const std::int64_t tokens : {std::int64_t{20}, std::int64_t{0}})
      for (const bool accumulate : {false, true}) {
        CAPTURE(tokens);
        CAPTURE(accumulate);
        const Sizes s{tokens, 8, 6, 4, 2, 3, 0};
        Values in = inputs_of(s);
        for (auto& one : in) one = one.to(type).requires_grad_(true);
        const SlotOrder order = sort_slots(ids_of(s), s.experts);
        layer(in, order).sum().backward();
        Values direct;
        for (std::size_t i = 2; i < 5; ++i) direct.push_back(in[i].grad().clone());
        CountingSink sink;
        sink.accumulate = accumulate;
        const GradSinkScope scope(&sink);
        layer(in, order).sum().backward();
        for (std::size_t i = 2; i < 5; ++i) {
          const auto* key = in[i].unsafeGetTensorImpl();
          CHECK(sink.told[key] == 1);
          CHECK(distance(sink.places[key], direct[i - 2] + (accumulate ? 2 : 0)) < 1e-6);
          CHECK(in[i].grad().equal(direct[i - 2]));
        }
      }
}

TEST_CASE("moe: slots are sorted by expert, then by token; capacity drops the last ones") {
  const Tensor ids = torch::tensor({{2, 0}, {2, 1}, {0, 2}, {2, 0}}, torch::kLong);
  const SlotOrder all = sort_slots(ids, 4);
  CHECK(all.counts == Counts{3, 1, 4, 0});
  CHECK(numbers(all.slots) == Counts{1, 4, 7, 3, 0, 2, 5, 6});
  CHECK(numbers(all.places) == Counts{4, 0, 5, 3, 1, 6, 7, 2});
  const SlotOrder few = sort_slots(ids, 4, 2);
  CHECK(few.counts == Counts{2, 1, 2, 0});
  CHECK(numbers(few.slots) == Counts{1, 4, 3, 0, 2});
  CHECK(numbers(few.places) == Counts{3, 0, 4, 2, 1, -1, -1, -1});
}

TEST_CASE("moe: parts of a micro-batch drop what the whole drops") {
  const Sizes s{40, 1, 1, 6, 3, 6, 13};
  const Tensor ids = ids_of(s), whole = sort_slots(ids, s.experts, s.capacity).places;
  torch::manual_seed(9);
  const Tensor mixed = torch::randperm(s.tokens, torch::kLong);  // tokens as their ranks have them
  const Tensor earlier = earlier_slots(ids.index_select(0, mixed), mixed, s.experts);
  for (const auto& [begin, size] : {std::pair<int, int>{0, 15}, {15, 20}, {35, 5}}) {
    const Tensor here = mixed.narrow(0, begin, size);
    const SlotOrder part = sort_slots(ids.index_select(0, here), s.experts, s.capacity,
                                      earlier.narrow(0, begin, size).contiguous());
    CHECK((part.places >= 0).equal(whole.index_select(0, here) >= 0));
  }
  CHECK((whole < 0).any().item<bool>());
}

TEST_CASE("moe: capacity is rounded up, at least one, and off at 0") {
  tutti::recipe::Moe moe = moe_of(8, 2);
  CHECK(capacity_of(moe, 100) == 0);
  moe.capacity_factor = 1.25;
  CHECK(capacity_of(moe, 100) == 32);  // 31.25
  CHECK(capacity_of(moe, 1) == 1);
  moe.capacity_factor = 1;
  CHECK(capacity_of(moe, 100) == 25);
}

TEST_CASE("moe: the router's decision is that of a loop over numbers") {
  for (const std::string kind : {"softmax", "sigmoid"})
    for (const bool normalise : {false, true})
      for (const auto& [groups, open] : {std::pair<int, int>{1, 1}, {4, 2}, {2, 1}}) {
        CAPTURE(kind);
        CAPTURE(normalise);
        CAPTURE(groups);
        tutti::recipe::Moe moe = moe_of(12, 3);
        moe.router = kind, moe.normalise = normalise, moe.router_scale = 2.5;
        moe.groups = groups, moe.groups_per_token = open;
        torch::manual_seed(2);
        const Tensor scores = torch::randn({30, 12}).to(torch::kDouble);
        const Tensor bias = torch::randn({12}) * 0.5;
        const Routing r = route(scores, bias, moe);
        for (std::int64_t t = 0; t < 30; ++t) {
          std::vector<double> p(12), choice(12);
          double total = 0;
          for (std::int64_t e = 0; e < 12; ++e) {
            const double x = scores[t][e].item<double>();
            p[e] = kind == "sigmoid" ? 1 / (1 + std::exp(-x)) : std::exp(x);
            total += p[e];
          }
          for (std::int64_t e = 0; e < 12; ++e) {
            if (kind == "softmax") p[e] /= total;
            choice[e] = p[e] + bias[e].item<double>();
          }
          const std::int64_t size = 12 / groups;
          std::vector<std::pair<double, std::int64_t>> strengths, found;
          for (std::int64_t g = 0; g < groups; ++g) {
            std::vector<double> of(choice.begin() + g * size, choice.begin() + (g + 1) * size);
            std::sort(of.rbegin(), of.rend());
            strengths.emplace_back(-(of[0] + of[1]), g);
          }
          std::sort(strengths.begin(), strengths.end());
          for (int g = 0; g < open; ++g)
            for (std::int64_t i = 0; i < size; ++i) {
              const std::int64_t e = strengths[g].second * size + i;
              found.emplace_back(-choice[e], e);
            }
          std::sort(found.begin(), found.end());
          double chosen = 0;
          for (int c = 0; c < 3; ++c) chosen += p[found[c].second];
          for (int c = 0; c < 3; ++c) {
            CHECK(r.ids[t][c].item<std::int64_t>() == found[c].second);
            const double weight = 2.5 * p[found[c].second] / (normalise ? chosen : 1);
            CHECK(r.weights[t][c].item<double>() == doctest::Approx(weight).epsilon(1e-12));
          }
        }
        const Tensor direction = torch::randn({30, 3}).to(torch::kDouble);
        check_differences(
            [&](const Tensor& x) { return (route(x, bias, moe, r.ids).weights * direction).sum(); },
            scores);
      }
}

TEST_CASE("moe: a decision that is given is kept; half scores are widened") {
  const tutti::recipe::Moe moe = moe_of(6, 2);
  torch::manual_seed(2);
  const Tensor scores = torch::randn({7, 6}), ids = route(scores, {}, moe).ids;
  CHECK(route(-scores, {}, moe, ids).ids.equal(ids));
  CHECK_FALSE(route(-scores, {}, moe).ids.equal(ids));
  const Routing half = route(scores.to(torch::kBFloat16), {}, moe);
  CHECK(bool(half.logits.scalar_type() == torch::kFloat));
  CHECK(bool(half.weights.scalar_type() == torch::kBFloat16));
}

TEST_CASE("moe: the aux loss of a balanced router is its weight a token, of a collapsed one more") {
  for (const std::string kind : {"softmax", "sigmoid"}) {
    tutti::recipe::Moe moe = moe_of(4, 2);
    moe.router = kind, moe.aux_loss = 0.5;
    const Tensor scores = torch::zeros({8, 4}, torch::kDouble);
    const Tensor counted = torch::ones({8}, torch::kBool);
    const Tensor ids = torch::tensor({{0, 1}, {2, 3}}, torch::kLong).repeat({4, 1});
    const Routing even = route(scores, {}, moe, ids);
    const auto share = [](const Tensor& n) { return n.to(torch::kDouble) * 2 / n.sum(); };
    const Tensor f = share(choices(ids, counted, 4));
    CHECK(f.sum().item<double>() == 2);
    CHECK(router_losses(even, f, counted, moe).item<double>() == doctest::Approx(8 * 0.5));
    const Tensor to_two = torch::tensor({9.0, 9.0, -9.0, -9.0}, torch::kDouble).repeat({8, 1});
    const Routing collapsed = route(to_two, {}, moe);
    const Tensor all = share(choices(collapsed.ids, counted, 4));
    CHECK(router_losses(collapsed, all, counted, moe).item<double>() ==
          doctest::Approx(8 * 0.5 * 2).epsilon(1e-3));
  }
}

TEST_CASE("moe: router losses are their formulas over the counted tokens, with their gradients") {
  torch::manual_seed(6);
  const Tensor scores = torch::randn({9, 5}).to(torch::kDouble) * 2;
  const Tensor counted = torch::arange(9) % 3 != 1;
  const Tensor f = torch::rand({5}).to(torch::kDouble);
  for (const std::string kind : {"softmax", "sigmoid"}) {
    tutti::recipe::Moe moe = moe_of(5, 2);
    moe.router = kind;
    for (const auto& [aux, z] : {std::pair<double, double>{0.3, 0}, {0, 0.2}, {0.3, 0.2}}) {
      moe.aux_loss = aux, moe.z_loss = z;
      double expected = 0;
      for (std::int64_t t = 0; t < 9; ++t) {
        if (t % 3 == 1) continue;
        double sum = 0, total = 0, balance = 0;
        std::vector<double> p(5);
        for (std::int64_t e = 0; e < 5; ++e) {
          const double x = scores[t][e].item<double>();
          p[e] = kind == "sigmoid" ? 1 / (1 + std::exp(-x)) : std::exp(x);
          total += p[e], sum += std::exp(x);
        }
        for (std::int64_t e = 0; e < 5; ++e) balance += f[e].item<double>() * p[e] / total;
        expected += aux * 5 / 2 * balance + z * std::pow(std::log(sum), 2);
      }
      const auto loss = [&](const Tensor& x) {
        return router_losses(route(x, {}, moe), f, counted, moe);
      };
      CHECK(loss(scores).item<double>() == doctest::Approx(expected).epsilon(1e-12));
      check_differences(loss, scores);
    }
  }
}

TEST_CASE("moe: no counted token: no choice, no loss, gradient zero") {
  tutti::recipe::Moe moe = moe_of(5, 2);
  moe.aux_loss = moe.z_loss = 1;
  const Tensor scores = torch::randn({9, 5}).requires_grad_(true);
  const Tensor none = torch::zeros({9}, torch::kBool);
  const Routing r = route(scores, {}, moe);
  CHECK(numbers(choices(r.ids, none, 5)) == Counts(5, 0));
  const Tensor loss = router_losses(r, torch::zeros({5}), none, moe);
  loss.backward();
  CHECK(loss.item<float>() == 0);
  CHECK(scores.grad().equal(torch::zeros({9, 5})));
}

TEST_CASE("moe: the bias rises for experts below the mean and falls above it") {
  Tensor bias = torch::tensor({0.5f, 0.0f, -0.5f, 0.0f});
  update_bias(bias, torch::tensor({10, 2, 6, 6}, torch::kLong), 0.125);
  CHECK(bias.equal(torch::tensor({0.375f, 0.125f, -0.5f, 0.0f})));
}
