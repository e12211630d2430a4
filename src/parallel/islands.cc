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
  for (const auto& named : task.module().named_parameters())
    if (named.value().requires_grad()) trained_.insert("model/" + named.key());
  for (const auto& named : task.module().named_buffers()) moving_.insert("model/" + named.key());
  inner_ = make(part, task, island_);
  const torch::NoGradGuard no_grad;
  for (StateTensor& tensor : inner_->state())
    if (of_model(tensor)) across_->broadcast(tensor.value, 0);
  inner_->restored();
  learn_owners();
  remember();
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

void Islands::remember() {
  for (const StateTensor& tensor : trained()) {
    Outer& outer = outer_[key_of(tensor)];
    outer.weights = tensor.value.clone();
    if (!outer.momentum.defined()) outer.momentum = torch::zeros_like(tensor.value);
    if (rounds() && sends(tensor) && !outer.error.defined())
      outer.error = torch::zeros_like(tensor.value);
  }
}

// From owners to the others of the island that hold the same pieces.
void Islands::hand_round(std::vector<StateTensor>& all) {
  std::map<std::string, torch::Tensor> values;
  for (const StateTensor& tensor : all) values[key_of(tensor)] = tensor.value;
  const int me = island_->rank();
  collective::Counts sent, received;
  std::vector<torch::Tensor> parts;
  std::vector<torch::Tensor> places;
  for (int rank = 0; rank < island_->size(); ++rank) {
    sent.push_back(0), received.push_back(0);
    for (const std::string& key : to_[static_cast<std::size_t>(rank)])
      if (owner_.at(key) == me) {
        parts.push_back(values.at(key).view({-1}));
        sent.back() += parts.back().numel();
      }
    for (const std::string& key : to_[static_cast<std::size_t>(me)])
      if (owner_.at(key) == rank) {
        places.push_back(values.at(key).view({-1}));
        received.back() += places.back().numel();
      }
  }
  const torch::Tensor none =
      torch::empty({0}, all.empty() ? torch::kFloat : all[0].value.scalar_type());
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

// One operation for all: the wire between islands may be slow to answer.
void Islands::mean_of(const std::vector<StateTensor>& sent) {
  if (sent.empty()) return;
  if (rounds()) return mean_of_rounded(sent);
  std::vector<torch::Tensor> flat;
  for (const StateTensor& tensor : sent) flat.push_back(tensor.value.view({-1}));
  const torch::Tensor all = torch::cat(flat);
  across_->all_reduce(all);
  all.div_(static_cast<double>(across_->size()));
  std::int64_t at = 0;
  for (torch::Tensor& tensor : flat) {
    tensor.copy_(all.narrow(0, at, tensor.numel()));
    at += tensor.numel();
  }
}

// Parts of one buffer, piece after piece, so that no block spans two of them.
void Islands::mean_of_rounded(const std::vector<StateTensor>& sent) {
  const Compression kind = compression_of(recipe_.optimizer.outer_type);
  std::vector<torch::Tensor> parts;
  for (const StateTensor& tensor : sent) {
    Outer& outer = outer_.at(key_of(tensor));
    const torch::Tensor delta = outer.weights - tensor.value + outer.error;
    parts.push_back(compressed(kind, delta));
    outer.error.copy_(delta - expanded(kind, parts.back(), delta));
  }
  const torch::Tensor all = across_->all_gather(torch::cat(parts));
  std::int64_t at = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const Outer& outer = outer_.at(key_of(sent[i]));
    torch::Tensor sum = torch::zeros_like(outer.weights);
    for (int island = 0; island < across_->size(); ++island)
      sum += expanded(kind, all[island].narrow(0, at, parts[i].numel()), sum);
    torch::Tensor(sent[i].value).copy_(outer.weights - sum / across_->size());
    at += parts[i].numel();
  }
}

void Islands::average() {
  const torch::NoGradGuard no_grad;
  std::vector<StateTensor> all = trained(), sent;
  for (const StateTensor& tensor : all)
    if (sends(tensor)) sent.push_back(tensor);
  mean_of(sent);
  hand_round(all);
  for (StateTensor& tensor : all) outer_step(outer_.at(key_of(tensor)), tensor.value);
  for (StateTensor& tensor : inner_->state())
    if (moving_.contains(tensor.name)) across_->broadcast(tensor.value, 0);
  inner_->restored();
}

// `value` holds the mean of the islands' weights, and then the weights to go on with.
void Islands::outer_step(Outer& outer, torch::Tensor& value) const {
  const double lr = recipe_.optimizer.outer_lr, mu = recipe_.optimizer.outer_momentum;
  const torch::Tensor delta = outer.weights - value;
  outer.momentum.mul_(mu).add_(delta);
  const torch::Tensor step = mu > 0 ? delta + mu * outer.momentum : delta;
  value.add_(delta - lr * step);  // exactly the mean for lr = 1 without momentum
  outer.weights.copy_(value);
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
  if ((input.step + 1) % recipe_.parallel.local_steps == 0) {
    const double start = real_clock().now();
    share(outcome);
    if (outcome.applied) average();
    if (comm::FlightRecorder* recorder = world_->recorder().get())
      recorder->span("mean", start, real_clock().now());
  } else {
    outcome.stop = false;
    outcome.count *= across_->size();  // about as many as all had
  }
  outcome.elapsed = elapsed_;
  outcome.exposed_seconds = world_->waited() - waited;
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
    tensor.owned = tensor.owned && place_ == 0;
    all.push_back(tensor);
    if (trained_.contains(tensor.name)) add_outer(all, tensor);
  }
  return all;
}

void Islands::restored() {
  inner_->restored();
  const torch::NoGradGuard no_grad;
  remember();
}

}  // namespace tutti::parallel
