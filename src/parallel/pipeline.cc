#include "parallel/pipeline.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"

namespace tutti::parallel {
namespace {

using plan::Action;
using plan::Pass;

// Adds the seconds of its lifetime to `to`, and writes them down.
class Timed {
 public:
  Timed(double& to, const char* name, comm::FlightRecorder* recorder)
      : to_(to), name_(name), recorder_(recorder) {}
  ~Timed() {
    const double end = real_clock().now();
    to_ += end - start_;
    if (recorder_) recorder_->span(name_, start_, end);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& to_;
  const char* name_;
  comm::FlightRecorder* recorder_;
  double start_ = real_clock().now();
};

bool makes_input_gradient(Pass pass) {
  return pass == Pass::backward || pass == Pass::input_gradient;
}

}  // namespace

Pipeline::Pipeline(plan::PipelineSchedule schedule, std::vector<nn::Stage> stages, StagedTask& task,
                   std::shared_ptr<collective::Group> group)
    : schedule_(std::move(schedule)),
      stages_(std::move(stages)),
      task_(task),
      group_(std::move(group)),
      rank_(group_ ? group_->rank() : 0) {
  TUTTI_ASSERT(static_cast<int>(stages_.size()) == schedule_.stages());
}

int Pipeline::rank_of(int stage) const {
  return schedule_.rank_of[static_cast<std::size_t>(stage)];
}

bool Pipeline::has(int stage) const { return rank_of(stage) == rank_; }

// What `peer` sends to this rank in a step, in its order.
std::deque<Pipeline::Message> Pipeline::messages_from(int peer) const {
  std::deque<Message> messages;
  for (const Action& a : schedule_.orders[static_cast<std::size_t>(peer)]) {
    if (a.pass == Pass::forward && a.stage + 1 < schedule_.stages() && has(a.stage + 1))
      messages.push_back({{a.stage + 1, a.micro_batch}, false});
    if (makes_input_gradient(a.pass) && a.stage > 0 && has(a.stage - 1))
      messages.push_back({{a.stage, a.micro_batch}, true});
  }
  return messages;
}

const Batch& Pipeline::batch(int micro_batch) {
  auto found = batches_.find(micro_batch);
  if (found == batches_.end()) {
    const Timed timed(times_.data, "data", recorder_.get());
    found = batches_.emplace(micro_batch, step_->batch(micro_batch)).first;
  }
  return found->second;
}

void Pipeline::send(const torch::Tensor& x, int stage, int micro_batch, bool gradient,
                    int to_stage) {
  const int peer = rank_of(to_stage);
  if (peer == rank_) {
    (gradient ? gradients_ : inputs_)[{stage, micro_batch}] = x;
    return;
  }
  std::erase_if(sends_, [](const auto& send) {
    if (!send.first->done()) return false;
    send.first->wait();
    return true;
  });
  const torch::Tensor message = x.contiguous();
  sends_.emplace_back(group_->send_async(message, peer), message);
}

torch::Tensor Pipeline::receive(int stage, int micro_batch, bool gradient, int from_stage) {
  const int peer = rank_of(from_stage);
  auto& come = gradient ? gradients_ : inputs_;
  const Key key{stage, micro_batch};
  while (!come.contains(key)) {
    TUTTI_ASSERT(peer != rank_ && !expected_[peer].empty(), "stage ", stage, ", micro-batch ",
                 micro_batch, ": nobody sends it");
    const Message next = expected_[peer].front();
    expected_[peer].pop_front();
    torch::Tensor x = torch::empty(task_.activation_shape(batch(next.key.second)), step_->type);
    {
      const Timed timed(times_.wait, "wait", recorder_.get());
      group_->recv_async(x, peer)->wait();
    }
    (next.gradient ? gradients_ : inputs_)[next.key] = x;
  }
  const torch::Tensor x = come.at(key);
  come.erase(key);
  return x;
}

void Pipeline::forward(int stage, int micro_batch) {
  Held held;
  const nn::Stage& s = stages_[static_cast<std::size_t>(stage)];
  if (!s.first) {
    held.in = receive(stage, micro_batch, false, stage - 1).detach();
    held.in.requires_grad_(torch::GradMode::is_enabled());
  }
  const Batch& given = batch(micro_batch);
  StagedTask::Output out;
  {
    const Timed timed(times_.forward, "forward", recorder_.get());
    step_->before_forward(micro_batch);
    out = task_.run_stage(s, held.in, given);
  }
  if (s.last || !fault("stage-loss")) held.loss = out.loss.sum;
  held.out = out.activation;
  if (held.loss.defined()) step_->loss(micro_batch, out.loss);
  if (!s.last) send(out.activation.detach(), stage + 1, micro_batch, false, stage + 1);
  if (!torch::GradMode::is_enabled()) return;
  held_.insert_or_assign(Key{stage, micro_batch}, std::move(held));
  peak_ = std::max(peak_, static_cast<int>(held_.size()));
}

void Pipeline::backward(int stage, int micro_batch, bool with_weights, StageGradients& gradients) {
  Held& held = held_.at({stage, micro_batch});
  const nn::Stage& s = stages_[static_cast<std::size_t>(stage)];
  nn::Tensors roots, seeds;
  const auto add_root = [&](const torch::Tensor& root, const torch::Tensor& seed) {
    if (!root.requires_grad()) return;
    roots.push_back(root);
    seeds.push_back(seed);
  };
  if (held.loss.defined()) add_root(held.loss, torch::full_like(held.loss, step_->loss_scale));
  if (!s.last) add_root(held.out, receive(stage + 1, micro_batch, true, stage + 1));
  const Timed timed(times_.backward, "backward", recorder_.get());
  const auto run = [&] {
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
  };
  if (with_weights) {
    gradients.begin(stage, micro_batch);
    const nn::GradSinkScope scope(&gradients.sink(stage));
    run();
    gradients.end(stage, micro_batch);
  } else {
    const nn::WeightWorkScope scope(held.later);
    run();
  }
  held.out = held.loss = torch::Tensor();
  if (!s.first) {
    torch::Tensor d_in = held.in.grad();
    if (!d_in.defined()) d_in = torch::zeros_like(held.in);
    send(d_in, stage, micro_batch, true, stage - 1);
    held.in = torch::Tensor();
  }
  if (with_weights) held_.erase({stage, micro_batch});
}

void Pipeline::weights(int stage, int micro_batch, StageGradients& gradients) {
  const Timed timed(times_.backward, "backward", recorder_.get());
  gradients.begin(stage, micro_batch);
  {
    const nn::GradSinkScope scope(&gradients.sink(stage));
    if (micro_batch > 0 || !fault("split-weights")) held_.at({stage, micro_batch}).later.run();
    gradients.end(stage, micro_batch);
  }
  held_.erase({stage, micro_batch});
}

void Pipeline::finish_sends() {
  for (const auto& send : sends_) send.first->wait();
  sends_.clear();
}

void Pipeline::begin(const Step& step) {
  step_ = &step;
  batches_.clear();
  held_.clear();
  inputs_.clear();
  gradients_.clear();
  sends_.clear();
  peak_ = 0;
  times_ = {};
}

void Pipeline::run(const Step& step, StageGradients& gradients) {
  begin(step);
  for (int peer = 0; peer < schedule_.ranks; ++peer)
    if (peer != rank_) expected_[peer] = messages_from(peer);
  for (const Action& a : schedule_.orders[static_cast<std::size_t>(rank_)]) {
    if (a.pass == Pass::forward)
      forward(a.stage, a.micro_batch);
    else if (a.pass == Pass::weight_gradient)
      weights(a.stage, a.micro_batch, gradients);
    else
      backward(a.stage, a.micro_batch, a.pass == Pass::backward, gradients);
  }
  finish_sends();
  TUTTI_ASSERT(held_.empty() && inputs_.empty() && gradients_.empty());
}

void Pipeline::evaluate(const Step& step, int count) {
  begin(step);
  for (int micro_batch = 0; micro_batch < count; ++micro_batch) {
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (!has(stage)) continue;
      if (stage > 0 && !has(stage - 1))
        expected_[rank_of(stage - 1)].assign(1, {{stage, micro_batch}, false});
      forward(stage, micro_batch);
    }
    batches_.erase(micro_batch);
  }
  finish_sends();
}

}  // namespace tutti::parallel
