#include "parallel/islands.h"

#include <algorithm>

#include "base/error.h"
#include "plan/layout.h"

namespace tutti::parallel {
namespace {

std::string key_of(const StateTensor& tensor) { return tensor.name + to_text(tensor.place()); }

// What this rank has of another island's tensor.
StateTensor nothing_of(const StateTensor& tensor) {
  StateTensor nothing = tensor;
  nothing.owned = false;
  std::ranges::fill(nothing.box->size, 0);
  nothing.value = torch::empty(nothing.box->size, tensor.value.options());
  return nothing;
}

bool of_model(const StateTensor& tensor) { return tensor.name.starts_with("model/"); }

}  // namespace

Islands::Islands(const recipe::Recipe& recipe, Task& task, const Make& make,
                 std::shared_ptr<collective::Group> world)
    : recipe_(recipe), world_(std::move(world)) {
  const recipe::Recipe part = plan::island_of(recipe);
  const int each = static_cast<int>(part.parallel.workers);
  place_ = world_->rank() / each;
  std::vector<int> island, across;
  for (int rank = 0; rank < world_->size(); ++rank) {
    if (rank / each == place_) island.push_back(rank);
    if (rank % each == world_->rank() % each) across.push_back(rank);
  }
  island_ = world_->subgroup(island, "island");
  across_ = world_->subgroup(across, "islands");
  for (const auto& named : task.module().named_parameters())
    if (named.value().requires_grad()) trained_.insert("model/" + named.key());
  for (const auto& named : task.module().named_buffers()) moving_.insert("model/" + named.key());
  inner_ = make(part, task, island_);
  const torch::NoGradGuard no_grad;
  for (StateTensor& tensor : inner_->state())
    if (of_model(tensor)) across_->broadcast(tensor.value, 0);
  inner_->restored();
  remember();
}

std::vector<StateTensor> Islands::trained() {
  std::vector<StateTensor> found;
  for (StateTensor& tensor : inner_->state())
    if (trained_.contains(tensor.name)) found.push_back(std::move(tensor));
  return found;
}

void Islands::remember() {
  for (const StateTensor& tensor : trained()) {
    Outer& outer = outer_[key_of(tensor)];
    outer.weights = tensor.value.clone();
    if (!outer.momentum.defined()) outer.momentum = torch::zeros_like(tensor.value);
  }
}

// Sums the tensors over the islands in one operation: the wire between them may be slow to answer.
void Islands::sum_across(const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty()) return;
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& tensor : tensors) flat.push_back(tensor.view({-1}));
  const torch::Tensor all = torch::cat(flat);
  across_->all_reduce(all);
  std::int64_t at = 0;
  for (torch::Tensor& tensor : flat) {
    tensor.copy_(all.narrow(0, at, tensor.numel()));
    at += tensor.numel();
  }
}

// What all ranks of an island hold is dealt to them, so that it crosses once.
void Islands::average() {
  const torch::NoGradGuard no_grad;
  std::vector<StateTensor> all = trained();
  std::vector<torch::Tensor> mine;
  std::vector<std::pair<torch::Tensor, int>> dealt;  // and the island's rank that sums it
  for (const StateTensor& tensor : all) {
    if (!tensor.box)
      dealt.emplace_back(tensor.value, static_cast<int>(dealt.size()) % island_->size());
    if (tensor.box || dealt.back().second == island_->rank()) mine.push_back(tensor.value);
  }
  sum_across(mine);
  for (const auto& [value, rank] : dealt) island_->broadcast(value, rank);
  for (StateTensor& tensor : all) outer_step(outer_.at(key_of(tensor)), tensor.value);
  for (StateTensor& tensor : inner_->state())
    if (moving_.contains(tensor.name)) across_->broadcast(tensor.value, 0);
  inner_->restored();
}

// `value` holds the sum of the islands' weights, and then the weights to go on with.
void Islands::outer_step(Outer& outer, torch::Tensor& value) const {
  const double lr = recipe_.optimizer.outer_lr, mu = recipe_.optimizer.outer_momentum;
  value.div_(static_cast<double>(across_->size()));
  const torch::Tensor delta = outer.weights - value;
  outer.momentum.mul_(mu).add_(delta);
  const torch::Tensor step = mu > 0 ? delta + mu * outer.momentum : delta;
  value.add_(delta - lr * step);  // exactly the mean for lr = 1 without momentum
  outer.weights.copy_(value);
}

// What all islands must know alike.
void Islands::share(StepOutcome& outcome) {
  torch::Tensor all = torch::tensor({outcome.loss * outcome.count, outcome.count,
                                     outcome.stop ? 1.0 : 0.0, place_ == 0 ? outcome.elapsed : 0.0},
                                    torch::kDouble);
  across_->all_reduce(all);
  const double* sums = all.data_ptr<double>();
  outcome.loss = sums[1] > 0 ? sums[0] / sums[1] : outcome.loss;
  outcome.count = sums[1];
  outcome.stop = sums[2] > 0;
  elapsed_ = sums[3];
}

StepOutcome Islands::step(const StepInput& input) {
  const std::int64_t parts = recipe_.batch.global / recipe_.batch.micro / recipe_.parallel.islands;
  StepInput mine = input;
  mine.batches = [&](std::int64_t id) { return input.batches(place_ * parts + id); };
  StepOutcome outcome = inner_->step(mine);
  if ((input.step + 1) % recipe_.parallel.local_steps == 0) {
    average();
    share(outcome);
  } else {
    outcome.stop = false;
  }
  outcome.elapsed = elapsed_;
  return outcome;
}

double Islands::evaluate(std::int64_t count, const BatchSource& batches) {
  torch::Tensor loss = torch::tensor({inner_->evaluate(count, batches)}, torch::kDouble);
  across_->all_reduce(loss);
  return loss.item<double>() / across_->size();
}

std::int64_t Islands::agree(std::int64_t value) {
  const torch::Tensor agreed = torch::tensor({value}, torch::kLong);
  world_->broadcast(agreed, 0);
  return agreed.item<std::int64_t>();
}

std::vector<StateTensor> Islands::state() {
  std::vector<StateTensor> all;
  for (StateTensor tensor : inner_->state()) {
    if (of_model(tensor)) {
      tensor.owned = tensor.owned && place_ == 0;
      all.push_back(tensor);
      if (!trained_.contains(tensor.name)) continue;
      tensor.name = "outer.momentum/" + tensor.name.substr(6);
      tensor.value = outer_.at(key_of(all.back())).momentum;
      all.push_back(tensor);
      continue;
    }
    if (!tensor.box) {
      tensor.shape = tensor.value.sizes().vec();
      tensor.box = whole(tensor.shape);
      tensor.owned = island_->rank() == 0;
    }
    for (int island = 0; island < across_->size(); ++island) {
      all.push_back(island == place_ ? tensor : nothing_of(tensor));
      all.back().name = str("island.", island, "/", tensor.name);
    }
  }
  return all;
}

void Islands::restored() {
  inner_->restored();
  const torch::NoGradGuard no_grad;
  remember();
}

}  // namespace tutti::parallel
