#include "parallel/mesh_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "parallel/places.h"
#include "parallel/step_parts.h"
#include "parallel/whole_task.h"

namespace tutti::parallel {
namespace {

constexpr std::int64_t votes = 2;  // stop, elapsed

std::unique_ptr<StagedTask> adaptor_of(Task& task, const recipe::Recipe& recipe) {
  require_spreadable(recipe, task);
  if (dynamic_cast<StagedTask*>(&task)) return nullptr;
  return std::make_unique<WholeTask>(task);
}

}  // namespace

MeshEngine::MeshEngine(const recipe::Recipe& recipe, Task& task, const plan::Layout& layout,
                       std::shared_ptr<collective::Group> world)
    : recipe_(recipe),
      adaptor_(adaptor_of(task, recipe)),
      task_(adaptor_ ? *adaptor_ : dynamic_cast<StagedTask&>(task)),
      layout_(layout),
      groups_(open_groups(layout, recipe.parallel, std::move(world))),
      experts_(recipe.model.moe.experts,
               {groups_.expert, groups_.expert_tensor, groups_.context, groups_.tensor}),
      spread_(groups_.tensor, recipe.parallel.sequence_parallel,
              groups_.context
                  ? std::make_unique<ContextAttention>(groups_.ring, groups_.ulysses,
                                                       recipe.parallel.context_kind == "gather")
                  : nullptr,
              static_cast<int>(recipe.parallel.tensor_chunks)),
      cut_ranks_{layout.mesh.size("tensor"), layout.experts.size("expert"),
                 layout.experts.size("expert_tensor")},
      cut_place_{MeshGroups::rank_of(groups_.tensor), MeshGroups::rank_of(groups_.expert),
                 MeshGroups::rank_of(groups_.expert_tensor)},
      scaler_(recipe.precision == "fp16") {
  const torch::NoGradGuard no_grad;
  micro_batches_ = static_cast<int>(recipe.batch.global / recipe.batch.micro);
  ids_ = StageParameters::ids_of(static_cast<int>(recipe.parallel.zero), micro_batches_,
                                 groups_.data.size(), groups_.data.rank());
  broadcast_all();
  cut_all();
  find_shared();
  make_stages();
  learn_others();
}

MeshEngine::~MeshEngine() = default;

void MeshEngine::broadcast_all() {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& named : task_.module().named_parameters()) {
    if (!named.value().requires_grad())
      fixed_.push_back({"model/" + named.key(), named.value().detach(), {}, {}, true});
    else if (!seen.insert(named.value().unsafeGetTensorImpl()).second)
      continue;
    const torch::Tensor values = named.value().detach().contiguous();
    groups_.world->broadcast(values, 0);
    if (!named.value().is_contiguous()) named.value().detach().copy_(values);
  }
  for (const auto& named : task_.module().named_buffers()) {
    if (!named.value().defined() || named.value().numel() == 0) continue;
    moving_.push_back({"model/" + named.key(), named.value().detach(), {}, {}, true});
    groups_.world->broadcast(moving_.back().value, 0);
  }
}

// The gradient table has room for the norm's blocks of every part of every parameter.
void MeshEngine::cut_all() {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& named : task_.module().named_parameters()) {
    const torch::Tensor& parameter = named.value();
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    shapes.emplace_back(named.key(), parameter.sizes().vec());
    parameters_.push_back(parameter);
  }
  if (parameters_.empty()) throw ConfigError("the model has no parameter that requires a gradient");
  const Axes axes = task_.axes();
  const auto cuts_at = [&](const CutRanks& place) {
    return cut_parameters(shapes, axes, layout_.rules, cut_ranks_, place);
  };
  cuts_ = cuts_at(cut_place_);
  std::int64_t size = 2 * micro_batches_ + votes;
  for (const Cut& cut : cuts_) blocks_.emplace_back(parts_of(cut, cut_ranks_) + 1);
  const int most = std::max(cut_ranks_.tensor, cut_ranks_.expert * cut_ranks_.expert_tensor);
  std::vector<std::vector<Cut>> all;
  for (int part = 0; part < most; ++part) all.push_back(cuts_at(holder_of(part, cut_ranks_)));
  for (std::size_t p = 0; p < cuts_.size(); ++p) {
    for (std::size_t part = 0; part + 1 < blocks_[p].size(); ++part) {
      blocks_[p][part] = size;
      size += optim::norm_blocks(element_count(whole(all[part][p].local_shape())));
    }
    blocks_[p].back() = size;
  }
  table_ = torch::zeros({size}, torch::kDouble);
  for (std::size_t p = 0; p < cuts_.size(); ++p) {
    if (parts_of(cuts_[p], cut_ranks_) > 1)
      parameters_[p].set_data(take(parameters_[p].detach(), cuts_[p]));
    spread_.set_cut(parameters_[p], cuts_[p]);
  }
}

std::vector<nn::Stage> MeshEngine::stages() const {
  if (adaptor_) return {{0, 1}};
  std::vector<nn::Stage> stages;
  for (const plan::StageLayers& layers : layout_.stages)
    stages.push_back({layers.begin, layers.end, stages.empty(), false});
  stages.back().last = true;
  return stages;
}

// Ranks of the pipeline that hold the same parameter sum its gradients. All ranks open the same
// groups in the same order.
void MeshEngine::find_shared() {
  if (!groups_.pipeline) return;
  const int rank = groups_.world->rank();
  const std::vector<int> ranks = layout_.mesh.group(rank, "pipeline");
  const std::vector<nn::Stage> all = stages();
  for (const Cut& cut : cuts_) {
    std::vector<int> holders;
    for (std::size_t s = 0; s < all.size(); ++s)
      if (task_.in_stage(all[s], cut.name))
        holders.push_back(ranks[static_cast<std::size_t>(layout_.schedule.rank_of[s])]);
    if (holders.size() < 2) continue;
    std::sort(holders.begin(), holders.end());
    if (std::adjacent_find(holders.begin(), holders.end()) != holders.end())
      throw ConfigError({{"parallel.pipeline_schedule", "", layout_.schedule.kind,
                          str("puts two stages that share ", cut.name, " on one rank"),
                          "use 1f1b, interleaved or zb-h1, or model.tied: off"}});
    const bool mine = std::count(holders.begin(), holders.end(), rank) > 0;
    const auto group = groups_.world->subgroup(mine ? holders : std::vector<int>{rank}, "shared");
    if (mine) shared_[cut.name] = group;
  }
}

void MeshEngine::make_stages() {
  for (const torch::Tensor& parameter : parameters_) {
    if (parameter.scalar_type() == torch::kDouble) type_ = torch::kDouble;
  }
  if (type_ != torch::kDouble) type_ = compute_type(recipe_.precision);
  const std::vector<nn::Stage> all = stages();
  for (int s = 0; s < static_cast<int>(all.size()); ++s) {
    if (layout_.schedule.rank_of[static_cast<std::size_t>(s)] !=
        MeshGroups::rank_of(groups_.pipeline))
      continue;
    for (const bool experts : {false, true}) add_own(s, all[static_cast<std::size_t>(s)], experts);
  }
  std::vector<bool> needed(cuts_.size());
  for (const OwnStage& own : own_) {
    for (const std::size_t p : own.cuts) needed[p] = true;
    sinks_[own.stage].parts.push_back(own.parameters.get());
  }
  for (std::size_t p = 0; p < cuts_.size(); ++p)
    if (!needed[p]) parameters_[p].set_data(torch::empty({0}, parameters_[p].options()));
  if (recipe_.parallel.zero == 3)
    spread_.on_unit([this](const std::string& unit, MeshSpread::Use use) { use_unit(unit, use); });
}

void MeshEngine::add_own(int index, const nn::Stage& stage, bool experts) {
  OwnStage own{index, experts, {}, task_.units(stage), nullptr};
  for (std::size_t p = 0; p < cuts_.size(); ++p)
    if (cuts_[p].folded == experts && task_.in_stage(stage, cuts_[p].name)) own.cuts.push_back(p);
  if (own.cuts.empty() && experts) return;
  own.parameters = make_parameters(own);
  own_.push_back(std::move(own));
}

// The gradient of a part of the experts is, in each round of micro-batches, whole on its replicas'
// ranks together: a rank of the replicas has one addend a round.
std::unique_ptr<StageParameters> MeshEngine::make_parameters(const OwnStage& own) {
  StageParameters::Options options;
  options.compute_type = type_;
  options.reproducible = recipe_.reproducible;
  options.seed = recipe_.seed;
  options.overlap = recipe_.parallel.overlap;
  options.zero = static_cast<int>(recipe_.parallel.zero);
  options.bucket_bytes = recipe_.parallel.bucket_bytes;
  options.micro_batches =
      own.experts ? static_cast<int>(ids_.size()) * groups_.expert_replicas.size() : micro_batches_;
  options.reshard_after_forward = recipe_.parallel.reshard_after_forward;
  options.prefetch = recipe_.parallel.prefetch;
  options.units = own.units;
  for (const auto& shared : shared_) options.alone.push_back(shared.first);
  if (!own.experts) options.tokens = groups_.tokens;
  if (!own.experts && groups_.tensor)
    options.reduce_first = [this](const auto& flats, std::size_t first, std::size_t end,
                                  const std::vector<Piece>& pieces) {
      reduce_first(flats, first, end, pieces);
    };
  options.compress = {recipe_.parallel.compress, recipe_.parallel.compress_rank,
                      recipe_.parallel.compress_ratio, recipe_.parallel.compress_after};
  const bool keeps_bf16 = recipe_.optimizer.state == "bf16";
  std::vector<StageParameters::Named> named;
  for (const std::size_t p : own.cuts)
    named.push_back({cuts_[p].name, parameters_[p],
                     element_count(whole(cuts_[p].shape)) / parts_of(cuts_[p], cut_ranks_),
                     task_.input_first(cuts_[p].name),
                     keeps_bf16 ? places_of(cuts_[p]) : std::vector<optim::Run>()});
  return std::make_unique<StageParameters>(
      options, named, own.experts ? groups_.expert_replicas : groups_.data, recipe_.optimizer);
}

void MeshEngine::use_unit(const std::string& unit, MeshSpread::Use use) {
  for (OwnStage& own : own_) {
    const auto at = std::find(own.units.begin(), own.units.end(), unit);
    if (at != own.units.end()) own.parameters->unit(static_cast<int>(at - own.units.begin()), use);
  }
}

// Gradients that are addends over the tensor axis. They are small and many (norms, biases), so that
// one sum of them all is what they cost; a large one goes from where it lies.
void MeshEngine::reduce_first(const std::vector<torch::Tensor>& flats, std::size_t first,
                              std::size_t end, const std::vector<Piece>& pieces) {
  constexpr std::int64_t large = 1 << 16;
  std::vector<torch::Tensor> packed;
  std::vector<std::shared_ptr<collective::Work>> works;
  for (const torch::Tensor& flat : flats)
    for (std::size_t p = first; p < end; ++p) {
      const Piece& piece = pieces[p];
      if (!spread_.sums_gradient(piece.parameter) || fault("uncut-gradient")) continue;
      const torch::Tensor part = flat.narrow(0, piece.offset - pieces[first].offset, piece.size);
      if (piece.size < large)
        packed.push_back(part);
      else
        works.push_back(groups_.tensor->all_reduce_async(part));
    }
  if (!packed.empty()) {
    const torch::Tensor all = torch::cat(packed);
    groups_.tensor->all_reduce(all);
    std::int64_t at = 0;
    for (const torch::Tensor& part : packed) {
      part.copy_(all.narrow(0, at, part.size(0)));
      at += part.size(0);
    }
  }
  for (const auto& work : works) work->wait();
}

nn::GradSink::Target MeshEngine::Sink::target(const torch::Tensor& parameter) {
  for (StageParameters* part : parts)
    if (const Target found = part->target(parameter); found.grad.defined()) return found;
  return {};
}

void MeshEngine::Sink::ready(const torch::Tensor& parameter) {
  for (StageParameters* part : parts) part->ready(parameter);
}

void MeshEngine::begin(int stage, int micro_batch) {
  for (StageParameters* part : sinks_.at(stage).parts) part->begin(micro_batch);
}
nn::GradSink& MeshEngine::sink(int stage) { return sinks_.at(stage); }
void MeshEngine::end(int stage, int /*micro_batch*/) {
  for (StageParameters* part : sinks_.at(stage).parts) part->end();
}

Pipeline& MeshEngine::pipeline_for(int micro_batches) {
  const auto found = pipelines_.find(micro_batches);
  if (found != pipelines_.end()) return found->second;
  const plan::PipelineSchedule& s = layout_.schedule;
  return pipelines_
      .try_emplace(micro_batches,
                   s.micro_batches == micro_batches
                       ? s
                       : plan::make_pipeline_schedule(s.kind, s.ranks, s.chunks, micro_batches),
                   stages(), task_, groups_.pipeline)
      .first->second;
}

void MeshEngine::run_micro_batches(const StepInput& input, StepOutcome& outcome) {
  double* table = table_.data_ptr<double>();
  Pipeline::Step step;
  step.batch = [&](int i) { return input.batches(ids_[static_cast<std::size_t>(i)]); };
  step.before_forward = [&](int i) {
    const int id = ids_[static_cast<std::size_t>(i)];
    seed_micro_batch(recipe_.seed, input.step, id);
    task_.at(input.step, id);
  };
  step.loss = [&](int i, const Loss& loss) {
    if (MeshGroups::rank_of(groups_.tensor) != 0) return;  // the others have the same
    const int id = ids_[static_cast<std::size_t>(i)];
    table[id] += loss.sum.item<double>();
    table[micro_batches_ + id] += loss.count;
  };
  step.loss_scale = scaler_.scale();
  step.type = type_;
  if (ids_.empty()) return;
  const nn::SpreadScope scope(&spread_);
  const nn::ExpertSpreadScope experts(&experts_);
  Pipeline& pipeline = pipeline_for(static_cast<int>(ids_.size()));
  pipeline.record(groups_.world->recorder());
  pipeline.run(step, *this);
  peak_activations_ = pipeline.peak_activations();
  outcome.data_seconds = pipeline.times().data;
  outcome.forward_seconds = pipeline.times().forward;
  outcome.backward_seconds = pipeline.times().backward;
  outcome.wait_seconds = pipeline.times().wait;
}

// Both ends' gradients of a tied weight: each has its own part of the same cut.
void MeshEngine::sum_shared() {
  for (const auto& [name, group] : shared_)
    for (OwnStage& own : own_)
      for (const Piece& piece : own.parameters->pieces())
        if (piece.name == name) {
          const torch::Tensor part = own.parameters->own_gradient(name).contiguous();
          if (!fault("tied-once")) group->all_reduce(part);
          if (fault("tied-twice")) part.mul_(2);
          own.parameters->own_gradient(name).copy_(part);
          own.parameters->share_own_gradient(name);
        }
}

// The first of the context axis, of the tensor axis if it is not cut, of the stages that share it.
// Experts that are dealt over ranks lie on none of these twice.
bool MeshEngine::answers_for(const Cut& cut) const {
  if (cut.folded) return true;
  const auto shared = shared_.find(cut.name);
  return MeshGroups::rank_of(groups_.context) == 0 &&
         (parts_of(cut, cut_ranks_) > 1 || MeshGroups::rank_of(groups_.tensor) == 0) &&
         (shared == shared_.end() || shared->second->rank() == 0);
}

void MeshEngine::write_squares() {
  const int tensor = MeshGroups::rank_of(groups_.tensor);
  const auto counts = [&](const Cut& cut, std::size_t part) {
    const bool uncut = parts_of(cut, cut_ranks_) == 1;
    if (fault("context-norm") && !cut.folded) return !uncut || tensor == 0;
    if (fault("uncut-norm") && uncut) return MeshGroups::rank_of(groups_.context) == 0;
    if (fault("expert-norm") && cut.folded) return part == 0;
    return answers_for(cut);
  };
  for (const OwnStage& own : own_) {
    std::vector<double*> blocks;
    for (const std::size_t p : own.cuts) {
      const auto part = static_cast<std::size_t>(part_of(cuts_[p], cut_ranks_, cut_place_));
      blocks.push_back(counts(cuts_[p], part) ? table_.data_ptr<double>() + blocks_[p][part]
                                              : nullptr);
    }
    own.parameters->write_squares(blocks);
  }
}

void MeshEngine::share_table(const StepInput& input, StepOutcome& outcome) {
  double* table = table_.data_ptr<double>();
  const std::int64_t n = micro_batches_;
  table[2 * n] = input.stop ? 1 : 0;
  table[2 * n + 1] = groups_.world->rank() == 0 ? input.elapsed : 0;
  write_squares();
  // Every entry but the stop votes is zero on all ranks save one (a loss: save those of the context
  // axis), so that this sum is exact.
  const double own_count = tree_sum(table + n, n);
  groups_.world->all_reduce(table_);
  outcome.count = tree_sum(table + n, n);
  if (fault("local-count") && groups_.data.data) outcome.count = own_count;
  outcome.loss = outcome.count > 0 ? tree_sum(table, n) / outcome.count : 0;
  outcome.stop = table[2 * n] > 0;
  outcome.elapsed = table[2 * n + 1];
}

double MeshEngine::squared_norm() const {
  const double* table = table_.data_ptr<double>();
  std::vector<double> sums(cuts_.size(), 0);
  for (std::size_t p = 0; p < cuts_.size(); ++p)
    for (std::size_t part = 0; part + 1 < blocks_[p].size(); ++part)
      if (blocks_[p][part] < blocks_[p][part + 1])
        sums[p] += optim::tree_sum(
            std::vector<double>(table + blocks_[p][part], table + blocks_[p][part + 1]));
  return optim::tree_sum(sums);
}

// The first parameter in the model's order whose gradient is not finite, on any rank.
std::string MeshEngine::first_culprit() {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const OwnStage& own : own_) {
    const std::string name = own.parameters->first_non_finite();
    for (const std::size_t p : own.cuts)
      if (cuts_[p].name == name) first = std::min(first, static_cast<std::int64_t>(p));
  }
  const torch::Tensor shared = torch::full({1}, first, torch::kLong);
  groups_.world->all_reduce(shared, comm::Reduce::min);
  const auto at = shared.item<std::int64_t>();
  return at < static_cast<std::int64_t>(cuts_.size()) ? cuts_[static_cast<std::size_t>(at)].name
                                                      : "loss";
}

void MeshEngine::update(const StepInput& input, StepOutcome& outcome) {
  const double divisor = std::max(outcome.count, 1.0) * scaler_.scale();
  outcome.loss_scale = scaler_.scale();
  outcome.grad_norm = std::sqrt(squared_norm()) / divisor;
  if (!std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm)) {
    scaler_.update(false);
    outcome.applied = false;
    outcome.culprit = first_culprit();
    return;
  }
  const double scale = optim::clip_scale(outcome.grad_norm, recipe_.optimizer.clip) / divisor;
  for (OwnStage& own : own_) own.parameters->update(updates_ + 1, input.lr, scale);
  ++updates_;
  scaler_.update(true);
}

StepOutcome MeshEngine::step(const StepInput& input) {
  StepOutcome outcome;
  const double waited = groups_.world->waited();
  table_.zero_();
  task_.take_counts();
  for (OwnStage& own : own_) own.parameters->begin_step(updates_, scaler_.scale());
  run_micro_batches(input, outcome);
  const double start = real_clock().now();
  const torch::NoGradGuard no_grad;
  for (OwnStage& own : own_) own.parameters->finish();
  if (std::exchange(first_step_, false)) refuse_unasked();
  sum_shared();
  share_table(input, outcome);
  const double reduced = real_clock().now();
  update(input, outcome);
  for (OwnStage& own : own_) own.parameters->end_step();
  if (torch::Tensor counts = task_.take_counts(); counts.defined() && outcome.applied) {
    const bool first =
        MeshGroups::rank_of(groups_.tensor) == 0 && MeshGroups::rank_of(groups_.context) == 0;
    if (!first) counts.zero_();  // the others have the same
    groups_.world->all_reduce(counts);
    task_.counted(counts);
  }
  if (groups_.world->size() > 1 && !task_.exact_buffers())
    for (const StateTensor& buffer : moving_) groups_.world->broadcast(buffer.value, 0);
  outcome.wait_seconds += reduced - start;
  const double end = real_clock().now();
  outcome.optimizer_seconds = end - reduced;
  outcome.exposed_seconds = groups_.world->waited() - waited;
  if (comm::FlightRecorder* recorder = groups_.world->recorder().get()) {
    recorder->span("reduce", start, reduced);
    recorder->span("optimizer", reduced, end);
  }
  return outcome;
}

double MeshEngine::evaluate(std::int64_t count, const BatchSource& batches) {
  const bool training = task_.module().is_training();
  task_.module().eval();
  for (OwnStage& own : own_) own.parameters->gather_all();
  torch::Tensor sums = torch::zeros({2 * count}, torch::kDouble);
  const comm::Range mine = comm::even_ranges(
      static_cast<int>(count), groups_.data.size())[static_cast<std::size_t>(groups_.data.rank())];
  Pipeline::Step step;
  // Ranks that send each other rows make as many passes; who has no batch left repeats one.
  const int passes = experts_.spreads()
                         ? (static_cast<int>(count) + groups_.data.size() - 1) / groups_.data.size()
                         : mine.size();
  step.batch = [&](int i) { return batches(i < mine.size() ? mine.begin + i : 0); };
  step.before_forward = [](int) {};
  step.loss = [&](int i, const Loss& loss) {
    if (MeshGroups::rank_of(groups_.tensor) != 0 || i >= mine.size()) return;
    sums[mine.begin + i] += loss.sum.item<double>();
    sums[count + mine.begin + i] += loss.count;
  };
  step.type = type_;
  {
    const torch::NoGradGuard no_grad;
    const nn::SpreadScope scope(&spread_);
    const nn::ExpertSpreadScope experts(&experts_);
    pipeline_for(layout_.schedule.micro_batches).evaluate(step, passes);
  }
  for (OwnStage& own : own_) own.parameters->release_all();
  task_.module().train(training);
  groups_.world->all_reduce(sums);
  const double* values = sums.data_ptr<double>();
  const double targets = count ? tree_sum(values + count, count) : 0;
  return targets > 0 ? tree_sum(values, count) / targets : 0;
}

std::int64_t MeshEngine::agree(std::int64_t value) {
  const torch::Tensor shared = torch::full({1}, value, torch::kLong);
  groups_.world->broadcast(shared, 0);
  return shared.item<std::int64_t>();
}

std::int64_t MeshEngine::parameter_count() const {
  std::int64_t count = 0;
  for (const Cut& cut : cuts_) count += element_count(whole(cut.shape));
  return count;
}

}  // namespace tutti::parallel
