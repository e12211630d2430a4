// Dynamic loss scaling for fp16 (Micikevicius et al., "Mixed precision training", ICLR 2018,
// section 3.2): small gradients are lifted into fp16's range; an overflow skips the update and
// lowers the scale. A pure state machine: the same outcomes give the same scales on all ranks.
#pragma once
#include <cstdint>

namespace tutti::optim {

class LossScaler {
 public:
  explicit LossScaler(bool active) : scale_(active ? 65536 : 1), active_(active) {}

  double scale() const { return scale_; }
  bool active() const { return active_; }
  std::int64_t good_steps() const { return good_steps_; }

  // After each step: whether its gradients were finite. Doubles after 2000 good steps in a row,
  // halves (not below 1) after a bad one.
  void update(bool finite) {
    if (!active_) return;
    if (!finite) {
      scale_ = scale_ > 2 ? scale_ / 2 : 1;
      good_steps_ = 0;
    } else if (++good_steps_ == 2000) {
      scale_ *= 2;
      good_steps_ = 0;
    }
  }
  void restore(double scale, std::int64_t good_steps) {
    scale_ = active_ ? scale : 1;
    good_steps_ = good_steps;
  }

 private:
  double scale_;
  bool active_;
  std::int64_t good_steps_ = 0;
};

}  // namespace tutti::optim
