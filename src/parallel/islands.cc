#include "parallel/islands.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "collective/text.h"
#include "parallel/compression.h"
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
  for (const auto& named : task.module().named_buffers()) moving_.insert("model/" + named.key());
  cut_fragments(task);
  inner_ = make(part, task, island_);
  const torch::NoGradGuard no_grad;
  for (StateTensor& tensor : inner_->state())
    if (of_model(tensor)) across_->broadcast(tensor.value, 0);
  inner_->restored();
  learn_owners();
  remember();
}

void Islands::cut_fragments(Task& task) {
  std::vector<std::pair<std::string, std::int64_t>> all;
  std::int64_t total = 0;
  for (const auto& named : task.module().named_parameters())
    if (named.value().requires_grad()) {
      all.emplace_back("model/" + named.key(), named.value().numel());
      total += all.back().second;
    }
  const std::int64_t count = recipe_.parallel.fragments;
  std::int64_t before = 0;
  for (const auto& [name, size] : all) {  // by where its middle lies
    const std::int64_t middle = before + size / 2;
    trained_[name] =
        static_cast<int>(std::min(count - 1, middle * count / std::max<std::int64_t>(1, total)));
    before += size;
  }
  fragments_.resize(static_cast<std::size_t>(count));
}

std::vector<StateTensor> Islands::trained() {
  std::vector<StateTensor> found;
  for (StateTensor& tensor : inner_->state())
    if (trained_.contains(tensor.name)) found.push_back(std::move(tensor));
  return found;
}

// Each piece is sent by the one of its holders that has the least to send so far.
void Islands::learn_owners() {
  Json mine = Json::array();
  for (const StateTensor& tensor : trained())
    if (tensor.value.numel() > 0) mine.push_back({key_of(tensor), tensor.value.numel()});
  std::map<std::string, std::pair<std::int64_t, std::vector<int>>> pieces;  // size, holders
  int rank = 0;
  for (const std::string& text : collective::all_gather_text(*island_, mine.dump())) {
    for (const Json& piece : parse_json(text, "a rank's pieces")) {
      auto& [size, holders] = pieces[piece[0].get<std::string>()];
      size = piece[1].get<std::int64_t>();
      holders.push_back(rank);
    }
    ++rank;
  }
  std::vector<std::int64_t> loads(static_cast<std::size_t>(rank));
  to_.resize(loads.size());
  for (const auto& [key, piece] : pieces) {
    const auto& [size, holders] = piece;
    const int owner = std::ranges::min(
        holders, {}, [&](int holder) { return loads[static_cast<std::size_t>(holder)]; });
    owner_[key] = owner;
    loads[static_cast<std::size_t>(owner)] += size;
    for (const int holder : holders)
      if (holder != owner) to_[static_cast<std::size_t>(holder)].push_back(key);
  }
}

bool Islands::sends(const StateTensor& tensor) const {
  return tensor.value.numel() > 0 && owner_.at(key_of(tensor)) == island_->rank();
}

bool Islands::in_fragment(const StateTensor& tensor, int fragment) const {
  const auto found = trained_.find(tensor.name);
  return found != trained_.end() && found->second == fragment;
}

void Islands::remember() {
  for (const StateTensor& tensor : trained()) {
    Outer& outer = outer_[key_of(tensor)];
    outer.weights = tensor.value.clone();
    if (!outer.momentum.defined()) outer.momentum = torch::zeros_like(tensor.value);
    if (rounds() && sends(tensor) && !outer.error.defined())
      outer.error = torch::zeros_like(tensor.value);
  }
}

void Islands::hand_round(std::map<std::string, torch::Tensor>& values) {
  const int me = island_->rank();
  collective::Counts sent, received;
  std::vector<torch::Tensor> parts, places;
  for (int rank = 0; rank < island_->size(); ++rank) {
    sent.push_back(0), received.push_back(0);
    for (const std::string& key : to_[static_cast<std::size_t>(rank)])
      if (owner_.at(key) == me && values.contains(key)) {
        parts.push_back(values.at(key).view({-1}));
        sent.back() += parts.back().numel();
      }
    for (const std::string& key : to_[static_cast<std::size_t>(me)])
      if (owner_.at(key) == rank && values.contains(key)) {
        places.push_back(values.at(key).view({-1}));
        received.back() += places.back().numel();
      }
  }
  const torch::Tensor none = torch::empty(
      {0}, values.empty() ? torch::TensorOptions(torch::kFloat) : values.begin()->second.options());
  const torch::Tensor in = parts.empty() ? none : torch::cat(parts);
  const torch::Tensor out = torch::empty(
      {std::accumulate(received.begin(), received.end(), std::int64_t{0})}, none.options());
  island_->all_to_all_v(in, out, sent, received);
  std::int64_t at = 0;
  for (torch::Tensor& place : places) {
    place.copy_(out.narrow(0, at, place.numel()));
    at += place.numel();
  }
}

// One operation for all: the wire between islands may be slow to answer. Rounded changes are parts
// of one buffer, piece after piece, so that no block spans two of them.
void Islands::send(int number) {
  const torch::NoGradGuard no_grad;
  Fragment& fragment = fragments_[static_cast<std::size_t>(number)];
  fragment = {};
  std::vector<torch::Tensor> parts;
  for (const StateTensor& tensor : trained()) {
    if (!in_fragment(tensor, number) || !sends(tensor)) continue;
    fragment.keys.push_back(key_of(tensor));
    if (rounds()) {
      const Compression kind = compression_of(recipe_.optimizer.outer_type);
      Outer& outer = outer_.at(fragment.keys.back());
      const torch::Tensor delta = outer.weights - tensor.value + outer.error;
      parts.push_back(compressed(kind, delta));
      outer.error.copy_(delta - expanded(kind, parts.back(), delta));
    } else {
      parts.push_back(tensor.value.view({-1}));
    }
    fragment.sizes.push_back(parts.back().numel());
  }
  if (parts.empty()) return;
  const torch::Tensor own = torch::cat(parts);
  if (rounds()) {
    fragment.all = torch::empty({across_->size(), own.numel()}, own.options());
    fragment.work = across_->all_gather_v_async(
        own, fragment.all,
        collective::Counts(static_cast<std::size_t>(across_->size()), own.numel()));
  } else {
    fragment.all = own;
    fragment.work = across_->all_reduce_async(own);
  }
}

void Islands::means_of(const Fragment& fragment,
                       std::map<std::string, torch::Tensor>& values) const {
  const int islands = across_->size();
  std::int64_t at = 0;
  for (std::size_t i = 0; i < fragment.keys.size(); at += fragment.sizes[i], ++i) {
    torch::Tensor mean = values.at(fragment.keys[i]);
    if (!rounds()) {
      mean.copy_(fragment.all.narrow(0, at, fragment.sizes[i]).view(mean.sizes()));
      mean.div_(static_cast<double>(islands));
      continue;
    }
    const Compression kind = compression_of(recipe_.optimizer.outer_type);
    torch::Tensor sum = torch::zeros_like(mean);
    for (int island = 0; island < islands; ++island)
      sum += expanded(kind, fragment.all[island].narrow(0, at, fragment.sizes[i]), sum);
    mean.copy_(outer_.at(fragment.keys[i]).weights - sum / islands);
  }
}

void Islands::take(int number) {
  const torch::NoGradGuard no_grad;
  Fragment fragment = std::exchange(fragments_[static_cast<std::size_t>(number)], {});
  if (fragment.work) fragment.work->wait();
  std::vector<StateTensor> all = trained();
  std::erase_if(all, [&](const StateTensor& tensor) { return !in_fragment(tensor, number); });
  std::map<std::string, torch::Tensor> means;
  for (const StateTensor& tensor : all) means[key_of(tensor)] = torch::empty_like(tensor.value);
  means_of(fragment, means);
  hand_round(means);
  const double own = recipe_.parallel.overlap_steps > 0 ? recipe_.optimizer.outer_mix : 0;
  for (StateTensor& tensor : all) {
    torch::Tensor& mean = means.at(key_of(tensor));
    outer_step(outer_.at(key_of(tensor)), mean);
    if (own > 0)
      tensor.value.mul_(own).add_(mean, 1 - own);
    else
      tensor.value.copy_(mean);
  }
  inner_->restored();
}

// `mean` holds the mean of the islands' weights, and then the run's.
void Islands::outer_step(Outer& outer, torch::Tensor& mean) const {
  const double lr = recipe_.optimizer.outer_lr, mu = recipe_.optimizer.outer_momentum;
  const torch::Tensor delta = outer.weights - mean;
  outer.momentum.mul_(mu).add_(delta);
  const torch::Tensor step = mu > 0 ? delta + mu * outer.momentum : delta;
  mean.add_(delta - lr * step);  // exactly the mean for lr = 1 without momentum
  outer.weights.copy_(mean);
}

void Islands::share_buffers() {
  const torch::NoGradGuard no_grad;
  for (StateTensor& tensor : inner_->state())
    if (moving_.contains(tensor.name)) across_->broadcast(tensor.value, 0);
  inner_->restored();
}

void Islands::fragments_at(std::int64_t place) {
  const std::int64_t each = recipe_.parallel.local_steps / recipe_.parallel.fragments;
  for (int fragment = 0; fragment < static_cast<int>(fragments_.size()); ++fragment) {
    const std::int64_t taken = (fragment + 1) * each;
    if (place == taken - recipe_.parallel.overlap_steps) send(fragment);
    if (place != taken) continue;
    const double start = real_clock().now();
    take(fragment);
    if (comm::FlightRecorder* recorder = world_->recorder().get())
      recorder->span("mean", start, real_clock().now());
  }
}

// What all islands must know alike.
void Islands::share(StepOutcome& outcome) {
  torch::Tensor all =
      torch::tensor({outcome.loss * outcome.count, outcome.count, outcome.stop ? 1.0 : 0.0,
                     place_ == 0 ? outcome.elapsed : 0.0, outcome.applied ? 0.0 : 1.0},
                    torch::kDouble);
  across_->all_reduce(all);
  const double* sums = all.data_ptr<double>();
  outcome.loss = sums[1] > 0 ? sums[0] / sums[1] : outcome.loss;
  outcome.count = sums[1];
  outcome.stop = sums[2] > 0;
  elapsed_ = sums[3];
  if (sums[4] > 0 && outcome.applied) {
    outcome.applied = false;
    outcome.culprit = "another island's parameter";
  }
}

StepOutcome Islands::step(const StepInput& input) {
  const std::int64_t parts = recipe_.batch.global / recipe_.batch.micro / recipe_.parallel.islands;
  const double waited = world_->waited();
  StepInput mine = input;
  mine.batches = [&](std::int64_t id) { return input.batches(place_ * parts + id); };
  StepOutcome outcome = inner_->step(mine);
  const std::int64_t round = recipe_.parallel.local_steps, place = input.step % round + 1;
  if (place == round) {
    share(outcome);
    if (outcome.applied) share_buffers();
  } else {
    outcome.stop = false;
    outcome.count *= across_->size();  // about as many as all had
  }
  if (outcome.applied) fragments_at(place);
  outcome.elapsed = elapsed_;
  outcome.exposed_seconds = world_->waited() - waited;
  return outcome;
}

void Islands::swap_weights() {
  const torch::NoGradGuard no_grad;
  for (StateTensor& tensor : trained()) {
    Outer& outer = outer_.at(key_of(tensor));
    const torch::Tensor own = tensor.value.clone();
    tensor.value.copy_(outer.weights);
    outer.weights.copy_(own);
  }
  inner_->restored();
}

double Islands::evaluate(std::int64_t count, const BatchSource& batches) {
  if (streams()) swap_weights();
  torch::Tensor loss = torch::tensor({inner_->evaluate(count, batches)}, torch::kDouble);
  if (streams()) swap_weights();
  across_->all_reduce(loss);
  return loss.item<double>() / across_->size();
}

std::int64_t Islands::agree(std::int64_t value) {
  const torch::Tensor agreed = torch::tensor({value}, torch::kLong);
  world_->broadcast(agreed, 0);
  return agreed.item<std::int64_t>();
}

// A tensor of one island, and that this rank has nothing of the others'.
void Islands::add_of_island(std::vector<StateTensor>& all, StateTensor tensor) const {
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

void Islands::add_outer(std::vector<StateTensor>& all, StateTensor tensor) const {
  const Outer& outer = outer_.at(key_of(tensor));
  const std::string name = tensor.name.substr(std::string("model/").size());
  tensor.name = "outer.momentum/" + name;
  tensor.value = outer.momentum;
  all.push_back(tensor);
  if (!rounds()) return;
  tensor.name = "outer.error/" + name;
  if (!tensor.box) {
    tensor.shape = tensor.value.sizes().vec();
    tensor.box = whole(tensor.shape);
  }
  tensor.owned = true;
  if (outer.error.defined())
    tensor.value = outer.error;
  else
    tensor = nothing_of(tensor);
  add_of_island(all, tensor);
}

std::vector<StateTensor> Islands::state() {
  std::vector<StateTensor> all;
  for (StateTensor tensor : inner_->state()) {
    if (!of_model(tensor)) {
      add_of_island(all, std::move(tensor));
      continue;
    }
    const bool streamed = streams() && trained_.contains(tensor.name);
    StateTensor of_run = tensor;
    of_run.owned = tensor.owned && place_ == 0;
    if (streamed) of_run.value = outer_.at(key_of(tensor)).weights;
    all.push_back(of_run);
    if (trained_.contains(tensor.name)) add_outer(all, of_run);
    if (!streamed) continue;
    tensor.name = "local/" + tensor.name.substr(std::string("model/").size());
    add_of_island(all, std::move(tensor));
  }
  return all;
}

void Islands::restored() {
  inner_->restored();
  const torch::NoGradGuard no_grad;
  if (!streams()) remember();  // else they were read in place
}

}  // namespace tutti::parallel
