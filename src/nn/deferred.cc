#include "nn/deferred.h"

#include <functional>
#include <utility>

#include "base/error.h"

namespace tutti::nn {
namespace {

thread_local WeightWork* current = nullptr;

}  // namespace

// Every use of a parameter gets a buffer of its own, so that the real sink sees the same additions
// in the same order as if there were one pass.
class WeightWork::Aside : public GradSink {
 public:
  explicit Aside(WeightWork& owner) : owner_(owner) {}
  void move_to(WeightWork& owner) { owner_ = owner; }

  Target target(const torch::Tensor& parameter) override {
    const torch::Tensor buffer = torch::zeros(
        parameter.sizes(),
        parameter.options().requires_grad(false).dtype(
            parameter.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat));
    owner_.get().add([parameter, buffer] {
      const torch::NoGradGuard no_grad;
      const Target to = grad_sink()->target(parameter);
      TUTTI_ASSERT(to.grad.defined());
      if (to.accumulate)
        to.grad.add_(buffer);
      else
        to.grad.copy_(buffer);
      grad_sink()->ready(parameter);
    });
    return {buffer, false};
  }
  void ready(const torch::Tensor& /*parameter*/) override {}

 private:
  std::reference_wrapper<WeightWork> owner_;
};

WeightWork::WeightWork() : aside_(std::make_unique<Aside>(*this)) {}
WeightWork::~WeightWork() = default;
WeightWork::WeightWork(WeightWork&& other) noexcept
    : work_(std::move(other.work_)), aside_(std::move(other.aside_)) {
  if (aside_) aside_->move_to(*this);
}
WeightWork& WeightWork::operator=(WeightWork&& other) noexcept {
  work_ = std::move(other.work_);
  aside_ = std::move(other.aside_);
  if (aside_) aside_->move_to(*this);
  return *this;
}

void WeightWork::add(std::function<void()> product) { work_.push_back(std::move(product)); }

void WeightWork::run() {
  for (auto& product : std::exchange(work_, {})) product();
}

GradSink& WeightWork::aside() { return *aside_; }

WeightWork* weight_work() { return current; }

WeightWorkScope::WeightWorkScope(WeightWork& work) : outer_(current), sink_(&work.aside()) {
  current = &work;
}
WeightWorkScope::~WeightWorkScope() { current = outer_; }

}  // namespace tutti::nn
