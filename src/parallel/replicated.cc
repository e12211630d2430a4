#include "parallel/replicated.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "parallel/step_parts.h"

namespace tutti::parallel {
namespace {

constexpr std::int64_t votes = 2;  // stop, elapsed

std::vector<comm::Arrival> local_arrivals(const recipe::Recipe& recipe,
                                          const comm::ReductionPlan& plan, int rank) {
  const comm::Range range = plan.ranges[static_cast<std::size_t>(rank)];
  if (recipe.reproducible) return comm::arrivals_of(range, plan.leaves);
  return std::vector<comm::Arrival>(static_cast<std::size_t>(range.size()), comm::Arrival{0, 0});
}

comm::ReductionPlan plan_for(const recipe::Recipe& recipe, int ranks) {
  const int micro_batches = static_cast<int>(recipe.batch.global / recipe.batch.micro);
  return comm::plan_reduction(comm::even_ranges(micro_batches, ranks));
}

// One source a rank, whatever it accumulated: the tree over ranks.
comm::ReductionPlan plan_over_ranks(int ranks) {
  return comm::plan_reduction(comm::even_ranges(ranks, ranks));
}

}  // namespace

ReplicatedEngine::ReplicatedEngine(const recipe::Recipe& recipe, Task& task,
                                   std::shared_ptr<collective::Group> group)
    : recipe_(recipe),
      task_(task),
      group_(std::move(group)),
      plan_(plan_for(recipe, group_->size())),
      arrivals_(local_arrivals(recipe, plan_, group_->rank())),
      flat_(task.module(), compute_type(recipe.precision)),
      scaler_(recipe.precision == "fp16") {
  for (const Piece& piece : flat_.pieces())
    segments_.push_back(
        {piece.name, piece.offset, piece.size, piece.shape, task.input_first(piece.name)});
  optimizer_ = optim::make_optimizer(
      recipe.optimizer, segments_, flat_.master(),
      {group_->rank(), group_->size(),
       [this](torch::Tensor values, int root) { group_->broadcast(std::move(values), root); }},
      recipe.seed);
  group_->broadcast(flat_.master(), 0);
  for (const auto& named : task.module().named_parameters())
    if (!named.value().requires_grad())
      fixed_.push_back({"model/" + named.key(), named.value().detach()});
  for (const auto& named : task.module().named_buffers())
    if (named.value().defined() && named.value().numel() > 0)
      moving_.push_back({"model/" + named.key(), named.value().detach()});
  for (const auto* tensors : {&fixed_, &moving_})
    for (const StateTensor& tensor : *tensors) group_->broadcast(tensor.value, 0);
  flat_.refresh_compute();

  reduction_ = recipe.reproducible ? plan_ : plan_over_ranks(group_->size());
  const int slots = std::max(1, comm::slots_of(arrivals_));
  const auto type = flat_.master().scalar_type();
  for (int i = 0; i < slots; ++i) slots_.push_back(group_->empty_shared(flat_.size(), type));

  for (const Bucket& bucket :
       make_buckets(flat_.pieces(), flat_.size(), recipe.parallel.bucket_bytes,
                    static_cast<std::int64_t>(flat_.master().element_size())))
    buckets_.push_back({bucket, 0, nullptr});
  bucket_of_.resize(segments_.size());
  used_again_.resize(segments_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    for (std::size_t p = buckets_[b].bucket.first_piece; p < buckets_[b].bucket.end_piece; ++p)
      bucket_of_[p] = b;
  losses_ = torch::zeros({2 * plan_.leaves + votes}, torch::kDouble);
  install_hooks();
}

ReplicatedEngine::~ReplicatedEngine() { drain(); }

// After a step that threw: nothing of it is under way any more.
void ReplicatedEngine::drain() {
  in_backward_ = false;
  for (BucketState& state : buckets_) {
    try {
      if (state.work) state.work->wait();
    } catch (const std::exception&) {  // it was reported where it mattered
    }
    state.work.reset();
  }
}

std::int64_t ReplicatedEngine::parameter_count() const {
  std::int64_t count = 0;
  for (const optim::Segment& segment : segments_) count += segment.size;
  return count;
}

// Parameters that the sink does not serve tell us through autograd's own accumulation.
void ReplicatedEngine::install_hooks() {
  for (std::size_t p = 0; p < flat_.pieces().size(); ++p) {
    const torch::Tensor& parameter = flat_.pieces()[p].parameter;
    piece_of_[parameter.unsafeGetTensorImpl()] = p;
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    using torch::autograd::variable_list;
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, p](const variable_list& outputs, const variable_list&) {
          if (in_backward_) take_autograd_gradient(p);
          return outputs;
        }));
    accumulators_.push_back(std::move(accumulator));
  }
}

void ReplicatedEngine::take_autograd_gradient(std::size_t p) {
  torch::Tensor& gradient = flat_.pieces()[p].parameter.mutable_grad();
  if (!gradient.defined()) return;
  torch::NoGradGuard no_grad;
  const Target place = target_of(p);
  if (place.accumulate)
    place.grad.add_(gradient);
  else
    place.grad.copy_(gradient);
  gradient.reset();
  written(p);
}

// A parameter that was whole already and comes again has several uses. That is learnt in the first
// step, which reduces nothing before all of backward is done.
nn::GradSink::Target ReplicatedEngine::target_of(std::size_t p) {
  if (is_ready_[p]) {
    if (bucket_of_[p] < next_bucket_)
      throw WorldError(str("step ", updates_ + 1, ": ", segments_[p].name,
                           " was used more than once in a micro-batch for the first time since the "
                           "first step, after its gradient had been sent; set parallel.overlap: "
                           "off"));
    used_again_[p] = true;
  }
  return {FlatParameters::view(slots_[static_cast<std::size_t>(slot_)], flat_.pieces()[p]),
          accumulate_ || is_written_[p]};
}

// One use of the parameter has left its gradient.
void ReplicatedEngine::written(std::size_t p) {
  is_written_[p] = true;
  if (!used_again_[p]) mark_ready(p);
}

nn::GradSink::Target ReplicatedEngine::target(const torch::Tensor& parameter) {
  const auto found = piece_of_.find(parameter.unsafeGetTensorImpl());
  return found == piece_of_.end() ? Target{} : target_of(found->second);
}

void ReplicatedEngine::ready(const torch::Tensor& parameter) {
  const auto found = piece_of_.find(parameter.unsafeGetTensorImpl());
  if (found != piece_of_.end()) written(found->second);
}

void ReplicatedEngine::mark_ready(std::size_t piece) {
  if (is_ready_[piece]) return;
  is_ready_[piece] = true;
  --buckets_[bucket_of_[piece]].missing;
  if (last_ && recipe_.parallel.overlap && uses_known_) reduce_complete();
}

// In the order of the buckets, whatever order they were completed in: a rank whose micro-batch left
// a parameter out completes them in another order than its peers.
void ReplicatedEngine::reduce_complete() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0)
    reduce(buckets_[next_bucket_++]);
}

// Parameters that this micro-batch did not use have gradient zero.
void ReplicatedEngine::finish_pieces() {
  torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < is_ready_.size(); ++p) {
    if (is_ready_[p]) continue;
    take_autograd_gradient(p);
    if (!accumulate_ && !is_written_[p])
      FlatParameters::view(slots_[static_cast<std::size_t>(slot_)], flat_.pieces()[p]).zero_();
    mark_ready(p);
  }
}

void ReplicatedEngine::merge(int slot, int merges, std::int64_t offset, std::int64_t size) {
  torch::NoGradGuard no_grad;
  for (; merges > 0; --merges, --slot)
    slots_[static_cast<std::size_t>(slot - 1)]
        .narrow(0, offset, size)
        .add_(slots_[static_cast<std::size_t>(slot)].narrow(0, offset, size));
}

void ReplicatedEngine::reduce(BucketState& state) {
  const Bucket& bucket = state.bucket;
  merge(slot_, merges_, bucket.offset, bucket.size);
  const int nodes = reduction_.nodes_of(group_->rank());
  std::vector<at::Tensor> parts;
  for (int i = 0; i < nodes; ++i)
    parts.push_back(slots_[static_cast<std::size_t>(i)].narrow(0, bucket.offset, bucket.size));
  state.work = group_->tree_all_reduce_async(
      std::move(parts), slots_[0].narrow(0, bucket.offset, bucket.size), reduction_);
}

void ReplicatedEngine::run_micro_batch(std::int64_t id, std::size_t index, const StepInput& input,
                                       StepOutcome& outcome) {
  Clock& clock = real_clock();
  const double start = clock.now();
  const Batch batch = input.batches(id);
  const double data_end = clock.now();
  seed_micro_batch(recipe_.seed, input.step, id);
  task_.at(input.step, id);

  slot_ = arrivals_[index].slot;
  merges_ = arrivals_[index].merges;
  accumulate_ = !recipe_.reproducible && index > 0;
  last_ = index + 1 == arrivals_.size();
  is_ready_.assign(segments_.size(), false);
  is_written_ = is_ready_;
  next_bucket_ = 0;
  for (BucketState& state : buckets_)
    state.missing = state.bucket.end_piece - state.bucket.first_piece;

  const Loss loss = task_.loss(batch);
  double* shared = losses_.data_ptr<double>();
  shared[id] = loss.sum.item<double>();
  shared[plan_.leaves + id] = loss.count;
  const double forward_end = clock.now();

  in_backward_ = true;
  {
    const nn::GradSinkScope scope(this);
    if (loss.sum.requires_grad())
      (scaler_.active() ? loss.sum * scaler_.scale() : loss.sum).backward();
    finish_pieces();
  }
  in_backward_ = false;
  if (!last_) merge(slot_, merges_, 0, flat_.size());
  const double backward_end = clock.now();
  outcome.data_seconds += data_end - start;
  outcome.forward_seconds += forward_end - data_end;
  outcome.backward_seconds += backward_end - forward_end;
}

void ReplicatedEngine::share_losses(const StepInput& input, StepOutcome& outcome) {
  double* shared = losses_.data_ptr<double>();
  shared[2 * plan_.leaves] = input.stop ? 1 : 0;
  shared[2 * plan_.leaves + 1] = group_->rank() == 0 ? input.elapsed : 0;
  // Every entry but the stop votes is zero on all ranks save one, so that this sum is exact.
  group_->all_reduce(losses_);
  outcome.count = tree_sum(shared + plan_.leaves, plan_.leaves);
  outcome.loss = outcome.count > 0 ? tree_sum(shared, plan_.leaves) / outcome.count : 0;
  outcome.stop = shared[2 * plan_.leaves] > 0;
  outcome.elapsed = shared[2 * plan_.leaves + 1];
}

void ReplicatedEngine::update(const StepInput& input, StepOutcome& outcome) {
  const torch::Tensor& gradient = slots_[0];
  const double divisor = std::max(outcome.count, 1.0) * scaler_.scale();
  outcome.loss_scale = scaler_.scale();
  outcome.grad_norm = std::sqrt(optim::squared_norm(gradient, segments_)) / divisor;
  const bool finite = std::isfinite(outcome.loss) && std::isfinite(outcome.grad_norm);
  if (!finite) {
    scaler_.update(false);
    outcome.applied = false;
    outcome.culprit = optim::first_non_finite(gradient, segments_);
    if (outcome.culprit.empty()) outcome.culprit = "loss";
    return;
  }
  const double scale = optim::clip_scale(outcome.grad_norm, recipe_.optimizer.clip) / divisor;
  torch::NoGradGuard no_grad;
  optimizer_->step(flat_.master(), gradient, updates_ + 1, input.lr, scale);
  ++updates_;
  scaler_.update(true);
  flat_.refresh_compute();
}

StepOutcome ReplicatedEngine::step(const StepInput& input) {
  drain();
  StepOutcome outcome;
  losses_.zero_();
  task_.take_counts();
  const comm::Range range = local_range();
  for (int id = range.begin; id < range.end; ++id)
    run_micro_batch(id, static_cast<std::size_t>(id - range.begin), input, outcome);
  const double start = real_clock().now();
  if (range.size() == 0) {  // it only joins the sums
    merges_ = 0;
    next_bucket_ = 0;
    if (!recipe_.reproducible) slots_[0].zero_();
  }
  while (next_bucket_ < buckets_.size()) reduce(buckets_[next_bucket_++]);
  uses_known_ = true;
  for (BucketState& state : buckets_) {
    state.work->wait();
    state.work.reset();
  }
  share_losses(input, outcome);
  const double reduced = real_clock().now();
  update(input, outcome);
  if (torch::Tensor counts = task_.take_counts(); counts.defined() && outcome.applied) {
    group_->all_reduce(counts);
    task_.counted(counts);
  }
  if (group_->size() > 1)
    for (const StateTensor& buffer : moving_) group_->broadcast(buffer.value, 0);
  outcome.wait_seconds = reduced - start;
  outcome.optimizer_seconds = real_clock().now() - reduced;
  return outcome;
}

double ReplicatedEngine::evaluate(std::int64_t count, const BatchSource& batches) {
  torch::InferenceMode inference;
  const bool training = task_.module().is_training();
  task_.module().eval();
  torch::Tensor sums = torch::zeros({2 * count}, torch::kDouble);
  const comm::Range mine = comm::even_ranges(
      static_cast<int>(count), group_->size())[static_cast<std::size_t>(group_->rank())];
  for (int id = mine.begin; id < mine.end; ++id) {
    const Loss loss = task_.loss(batches(id));
    sums[id] = loss.sum.item<double>();
    sums[count + id] = loss.count;
  }
  task_.module().train(training);
  group_->all_reduce(sums);
  const double* values = sums.data_ptr<double>();
  const double targets = count ? tree_sum(values + count, count) : 0;
  return targets > 0 ? tree_sum(values, count) / targets : 0;
}

std::int64_t ReplicatedEngine::agree(std::int64_t value) {
  const torch::Tensor shared = torch::full({1}, value, torch::kLong);
  group_->broadcast(shared, 0);
  return shared.item<std::int64_t>();
}

std::vector<StateTensor> ReplicatedEngine::gradients() {
  std::vector<StateTensor> all;
  for (const Piece& piece : flat_.pieces())
    all.push_back({piece.name, FlatParameters::view(slots_[0], piece)});
  return all;
}

std::vector<StateTensor> ReplicatedEngine::state() {
  std::vector<StateTensor> all;
  for (const Piece& piece : flat_.pieces())
    all.push_back({"model/" + piece.name, FlatParameters::view(flat_.master(), piece)});
  for (const auto* tensors : {&fixed_, &moving_})
    all.insert(all.end(), tensors->begin(), tensors->end());
  for (optim::NamedTensor& tensor : optimizer_->state())
    all.push_back({std::move(tensor.name), tensor.value.view(segments_[tensor.segment].shape)});
  return all;
}

std::string ReplicatedEngine::scalars() const {
  return Json{
      {"updates", updates_}, {"loss_scale", scaler_.scale()}, {"good_steps", scaler_.good_steps()}}
      .dump();
}

void ReplicatedEngine::set_scalars(const std::string& json) {
  const Json values = parse_json(json, "checkpoint state");
  updates_ = values.at("updates").get<std::int64_t>();
  scaler_.restore(values.at("loss_scale").get<double>(),
                  values.at("good_steps").get<std::int64_t>());
}

}  // namespace tutti::parallel
