#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tutti::optim {

double learning_rate(const recipe::Schedule& schedule, double lr, std::int64_t step,
                     const Lengths& lengths) {
  const double s = static_cast<double>(step), warmup = static_cast<double>(lengths.warmup),
               total = static_cast<double>(lengths.total), low = schedule.min_ratio * lr;
  if (step < lengths.warmup) return lr * (s + 1) / warmup;
  const auto part = [](double at, double length) {
    return std::clamp(at / std::max(1.0, length), 0.0, 1.0);
  };
  const double t = part(s - warmup, total - warmup);
  if (schedule.kind == "linear") return lr - (lr - low) * t;
  if (schedule.kind == "cosine") return low + (lr - low) * (1 + std::cos(std::numbers::pi * t)) / 2;
  if (schedule.kind == "wsd") {
    const double decay = static_cast<double>(lengths.decay);
    return lr - (lr - low) * part(s - (total - decay), decay);
  }
  return lr;
}

}  // namespace tutti::optim
