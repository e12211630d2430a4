#include "train/parity_compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "parallel/cut.h"

namespace tutti::train {
namespace {

constexpr std::size_t listed = 8;  // tensors of a quantity

double largest(const torch::Tensor& x) { return x.numel() > 0 ? x.abs().max().item<double>() : 0; }

double finite(double x) { return std::isnan(x) ? std::numeric_limits<double>::infinity() : x; }

// f if a = f x b but for rounding; else 0.
double common_factor(const torch::Tensor& a, const torch::Tensor& b) {
  const double squares = (b * b).sum().item<double>();
  const double factor = squares > 0 ? (a * b).sum().item<double>() / squares : 0;
  const bool all_alike = largest(a - b * factor) <= 1e-3 * largest(a - b);
  return all_alike && std::abs(factor - 1) > 1e-3 ? factor : 0;
}

// "optimizer.exp_avg/lm_head.weight" -> both sides of the dash.
std::pair<std::string, std::string> halves(const std::string& name) {
  const std::size_t slash = name.find('/');
  return {name.substr(0, slash), slash == std::string::npos ? name : name.substr(slash + 1)};
}

// Raises what is small beside the largest of its kind to where its rounding is within the limit.
void raise(std::map<std::string, double>& scales, double part) {
  std::map<std::string, double> most;
  for (const auto& [name, scale] : scales)
    most[halves(name).first] = std::max(most[halves(name).first], scale);
  for (auto& [name, scale] : scales)
    scale = std::max({scale, part * most[halves(name).first], 1e-300});
}

}  // namespace

Comparison::Comparison(const Twin& twin, const ParityOptions& options)
    : twin_(twin), options_(options), seen_(twin.steps.size()) {
  for (std::size_t step = 0; step < twin.steps.size(); ++step) scales_.push_back(scales_of(step));
}

Comparison::Scales Comparison::scales_of(std::size_t s) const {
  const TwinStep& step = twin_.steps[s];
  const bool exact = options_.precision == "fp64";
  const double epsilon = exact ? 2.2e-16 : 1.2e-7, part = 10 * epsilon / options_.limit();
  Scales scales;
  for (const auto& [name, gradient] : step.gradients) {
    const double most = largest(gradient);
    scales.gradient["gradient/" + name] = most;
    if (exact || most == 0) continue;
    torch::Tensor weight = gradient.abs() / most;
    if (s > 0 && scales_[s - 1].weights.contains(name))
      weight = torch::minimum(weight, scales_[s - 1].weights.at(name));
    scales.weights[name] = weight;
  }
  for (const auto& [name, after] : step.after) {
    const auto before = step.before.find(name);
    if (name.starts_with("model/"))
      scales.update[name] = largest(after.to(torch::kDouble) - before->second.to(torch::kDouble));
    else
      scales.state[name] = largest(after);
  }
  raise(scales.gradient, part);
  raise(scales.update, part);
  raise(scales.state, part);
  return scales;
}

void Comparison::note(Difference difference) {
  difference.value = finite(difference.value);
  const std::lock_guard lock(mutex_);
  auto& seen = seen_[static_cast<std::size_t>(difference.step)];
  const auto [at, is_new] = seen.try_emplace({difference.quantity, difference.name}, difference);
  if (!is_new && difference.value > at->second.value) at->second = std::move(difference);
}

void Comparison::number(Quantity quantity, int rank, std::int64_t step, double mine,
                        double theirs) {
  const double off = std::abs(mine - theirs);
  note({quantity, "", off / std::max(std::abs(theirs), 1e-12), step, rank,
        off > 1e-3 * std::abs(theirs) && theirs != 0 ? mine / theirs : 0});
}

void Comparison::outcome(int rank, std::int64_t step, const parallel::StepOutcome& outcome) {
  const TwinStep& twin = twin_.steps[static_cast<std::size_t>(step)];
  number(Quantity::count, rank, step, outcome.count, twin.count);
  number(Quantity::loss, rank, step, outcome.loss, twin.loss);
  number(Quantity::norm, rank, step, outcome.grad_norm, twin.norm);
}

void Comparison::piece(const parallel::StateTensor& piece, const torch::Tensor& mine,
                       const torch::Tensor& theirs, double scale, const torch::Tensor& weight,
                       Difference difference) {
  if (piece.value.numel() == 0) return;
  const torch::Tensor a = mine.to(torch::kDouble), b = theirs.to(torch::kDouble);
  torch::Tensor off = (a - b).abs();
  if (weight.defined()) off = off * parallel::box_view(weight, piece.place());
  difference.value = finite(off.max().item<double>() / scale);
  if (difference.value > options_.limit()) difference.factor = common_factor(a, b);
  note(std::move(difference));
}

void Comparison::gradients(int rank, std::int64_t step, const parallel::StepOutcome& outcome,
                           const std::vector<parallel::StateTensor>& pieces) {
  const torch::NoGradGuard no_grad;
  const auto s = static_cast<std::size_t>(step);
  const double divisor = std::max(outcome.count, 1.0);
  for (const parallel::StateTensor& p : pieces)
    piece(p, p.value / divisor, parallel::box_view(twin_.steps[s].gradients.at(p.name), p.place()),
          scales_[s].gradient.at("gradient/" + p.name), {},
          {Quantity::gradient, p.name, 0, step, rank});
}

void Comparison::state(int rank, std::int64_t step,
                       const std::vector<parallel::StateTensor>& pieces) {
  const torch::NoGradGuard no_grad;
  const auto s = static_cast<std::size_t>(step);
  const TwinStep& twin = twin_.steps[s];
  for (const parallel::StateTensor& p : pieces) {
    const auto [kind, name] = halves(p.name);
    const torch::Tensor after = parallel::box_view(twin.after.at(p.name), p.place());
    if (kind != "model") {
      piece(p, p.value, after, scales_[s].state.at(p.name), {},
            {Quantity::state, name, 0, step, rank, 0, kind});
      continue;
    }
    const torch::Tensor before =
        parallel::box_view(twin.before.at(p.name), p.place()).to(torch::kDouble);
    const auto weight = scales_[s].weights.find(name);
    piece(p, p.value.to(torch::kDouble) - before, after.to(torch::kDouble) - before,
          scales_[s].update.at(p.name),
          weight == scales_[s].weights.end() ? torch::Tensor() : weight->second,
          {Quantity::update, name, 0, step, rank});
    if (s + 1 == twin_.steps.size() && p.box) {
      const std::lock_guard lock(mutex_);
      owned_[p.name] += p.owned ? p.value.numel() : 0;
    }
  }
}

void Comparison::finish(ParityRun& run) const {
  std::map<Quantity, Difference> worst;
  std::vector<Difference> first;
  for (const auto& step : seen_) {
    for (const auto& [key, difference] : step) {
      const auto at = worst.try_emplace(key.first, difference).first;
      if (difference.value > at->second.value) at->second = difference;
    }
    if (!first.empty()) continue;
    for (const auto& [key, difference] : step)
      if (difference.value > options_.limit()) first.push_back(difference);
  }
  std::stable_sort(first.begin(), first.end(), [](const Difference& a, const Difference& b) {
    return a.quantity != b.quantity ? a.quantity < b.quantity : a.value > b.value;
  });
  std::map<Quantity, std::size_t> count;
  for (Difference& difference : first)
    if (count[difference.quantity]++ < listed) run.tensors.push_back(std::move(difference));
  for (auto& [quantity, difference] : worst) run.worst.push_back(difference);
  for (const auto& [name, elements] : owned_)
    if (elements != twin_.steps.back().after.at(name).numel())
      run.error = str(name, ": ", elements, " of its ", twin_.steps.back().after.at(name).numel(),
                      " elements have an owner");
  run.holds = run.error.empty() && first.empty();
}

}  // namespace tutti::train
