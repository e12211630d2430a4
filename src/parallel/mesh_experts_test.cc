// A mixture of experts on one device, and the same spread: loss, counts and gradients, in fp64.
#include "parallel/mesh_experts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "base/error.h"
#include "mesh/device_mesh.h"
#include "nn/model.h"
#include "parallel/mesh_spread.h"
#include "testing/ranks.h"

namespace tutti::parallel {
namespace {

using Rules = std::map<std::string, std::string>;

// The same ranks twice: data x context x tensor, and replicas x expert x expert_tensor.
struct Layout {
  int data = 1, context = 1, tensor = 1;
  bool sequence_parallel = false;
  int expert = 1, expert_tensor = 1;
  Rules rules = {};  // of the experts on the tensor axis, when they are not folded
  int ranks() const { return data * context * tensor; }
  int replicas() const { return ranks() / (expert * expert_tensor); }
};

std::string to_text(const Layout& l) {
  std::string text =
      str("data ", l.data, ", context ", l.context, ", tensor ", l.tensor,
          l.sequence_parallel ? " sequence" : "", "; expert ", l.expert, " x ", l.expert_tensor);
  for (const auto& [axis, to] : l.rules) text += str(", ", axis, ": ", to);
  return text;
}

recipe::Model small() {
  recipe::Model m;
  m.vocab = 37;
  m.layers = 2;
  m.embed = 24;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 6;
  m.moe.experts = 7;  // divisible by nothing
  m.moe.experts_per_token = 2;
  m.moe.expert_mlp = 22;
  m.moe.aux_loss = 0.3;
  m.moe.z_loss = 0.1;
  return m;
}

recipe::Model softmax() { return nn::resolve(small(), 17); }

// With everything that a mixture can have, and capacity.
recipe::Model sigmoid() {
  recipe::Model m = small();
  m.qk_norm = true;
  m.moe.router = "sigmoid";
  m.moe.shared_experts = 1;
  m.moe.shared_gate = true;
  m.moe.dense_layers = 1;
  m.moe.router_scale = 1.5;
  m.moe.capacity_factor = 0.75;
  m.mlp = 22;
  return nn::resolve(m, 17);
}

// `idle`: every token goes to the first two experts.
std::shared_ptr<nn::LanguageModel> model_of(const recipe::Model& config, bool idle) {
  auto model = nn::make_model(config);
  nn::initialise(*model, 7);
  model->to(torch::kDouble);
  torch::NoGradGuard no_grad;
  const auto random = at::detail::createCPUGenerator(4);  // ranks are threads: not the common one
  for (auto& p : model->named_parameters())
    p.value().add_(torch::randn(p.value().sizes(), random, torch::kDouble), 0.15);
  for (auto& b : model->named_buffers()) {
    if (!b.key().ends_with("router.bias")) continue;
    b.value().copy_(torch::linspace(-0.1, 0.1, b.value().size(0)));
    if (idle) b.value().narrow(0, 0, 2).fill_(9);
  }
  return model;
}

nn::TokenBatch batch_of(std::int64_t sequence, int data) {
  const auto random = at::detail::createCPUGenerator(5 + static_cast<std::uint64_t>(data));
  nn::TokenBatch batch{torch::randint(0, 37, {2, sequence}, random, torch::kLong),
                       torch::randint(0, 37, {2, sequence}, random, torch::kLong),
                       {}};
  batch.targets.narrow(1, sequence / 4, sequence / 2).fill_(-1);
  return batch;
}

struct Outcome {
  double loss = 0;
  torch::Tensor counts;
  std::map<std::string, torch::Tensor> gradients;
};

// The sum over the data ranks' micro-batches.
Outcome alone(const recipe::Model& config, std::int64_t sequence, int data, bool idle) {
  const auto model = model_of(config, idle);
  Outcome outcome;
  for (int d = 0; d < data; ++d) {
    const nn::Loss loss = model->loss(batch_of(sequence, d));
    loss.sum.backward();
    outcome.loss += loss.sum.item<double>();
  }
  outcome.counts = model->take_routed_counts();
  for (const auto& p : model->named_parameters()) outcome.gradients[p.key()] = p.value().grad();
  return outcome;
}

double difference(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a - b).abs().max().item<double>() / (1e-3 + b.abs().max().item<double>());
}

// One rank of a layout: its groups, its parts of the model.
class Member {
 public:
  Member(const recipe::Model& config, const Layout& layout, collective::Group& world)
      : layout_(layout),
        mesh_({{"data", layout.data}, {"context", layout.context}, {"tensor", layout.tensor}},
              layout.ranks()),
        folded_({{"replica", layout.replicas()},
                 {"expert", layout.expert},
                 {"expert_tensor", layout.expert_tensor}},
                layout.ranks()),
        rank_(world.rank()) {
    const auto along = [&](const DeviceMesh& mesh, const char* axis) {
      const auto group = world.subgroup(mesh.group(rank_, axis), axis);
      return group->size() > 1 ? group : nullptr;
    };
    data = along(mesh_, "data"), context = along(mesh_, "context"), tensor = along(mesh_, "tensor");
    replica = along(folded_, "replica");
    groups_ = {along(folded_, "expert"), along(folded_, "expert_tensor"), context, tensor};
    spread = std::make_unique<MeshSpread>(
        tensor, layout.sequence_parallel,
        context ? std::make_unique<ContextAttention>(context, nullptr, false) : nullptr);
    experts = std::make_unique<MeshExperts>(config.moe.experts, groups_);
  }

  int data_index() const { return mesh_.coordinate(rank_, "data"); }
  void cut(nn::LanguageModel& model) {
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
    for (const auto& p : model.named_parameters())
      shapes.emplace_back(p.key(), p.value().sizes().vec());
    Rules rules = {{"heads", "tensor"}, {"kv_heads", "tensor"}, {"vocab", "tensor"}};
    if (layout_.rules.empty()) rules["mlp"] = "tensor";
    rules.insert(layout_.rules.begin(), layout_.rules.end());
    const CutRanks place{mesh_.coordinate(rank_, "tensor"), folded_.coordinate(rank_, "expert"),
                         folded_.coordinate(rank_, "expert_tensor")};
    for (const Cut& cut :
         cut_parameters(shapes, {model.axes(), model.grains()}, rules,
                        {layout_.tensor, layout_.expert, layout_.expert_tensor}, place)) {
      torch::Tensor parameter = model.named_parameters()[cut.name];
      parameter.set_data(take(parameter.detach(), cut));
      spread->set_cut(parameter, cut);
      cuts_.emplace(cut.name, cut);
    }
  }

  torch::Tensor part(const torch::Tensor& whole, const std::string& name) const {
    return take(whole, cuts_.at(name));
  }

  // Over the ranks that hold the same part.
  torch::Tensor summed(const torch::Tensor& parameter, const std::string& name) const {
    torch::Tensor gradient = parameter.grad().defined() ? parameter.grad().clone()
                                                        : torch::zeros_like(parameter.detach());
    gradient = gradient.contiguous();
    if (cuts_.at(name).folded) {
      if (replica) replica->all_reduce(gradient);
      return gradient;
    }
    if (spread->sums_gradient(parameter)) tensor->all_reduce(gradient);
    for (const auto& group : {data, context})
      if (group) group->all_reduce(gradient);
    return gradient;
  }

  std::shared_ptr<collective::Group> data, context, tensor, replica;
  std::unique_ptr<MeshSpread> spread;
  std::unique_ptr<MeshExperts> experts;

 private:
  Layout layout_;
  DeviceMesh mesh_, folded_;
  int rank_;
  ExpertGroups groups_;
  std::map<std::string, Cut> cuts_;
};

// The ranks are threads enough, and the products small.
struct OneThread {
  OneThread() : outer(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(outer); }
  int outer;
};

struct Case {
  recipe::Model config;
  std::int64_t sequence = 16;
  bool recompute = false;
  bool idle = false;
};

// The worst relative difference of anything, with its name.
std::pair<double, std::string> spread_difference(const Case& test, const Layout& layout) {
  const OneThread one;
  const Outcome expected = alone(test.config, test.sequence, layout.data, test.idle);
  auto world = collective::make_thread_groups(layout.ranks());
  std::mutex mutex;
  std::pair<double, std::string> worst{0, ""};
  testing::run_members(world, [&](int, collective::Group& all) {
    at::set_num_threads(1);
    Member member(test.config, layout, all);
    const auto model = model_of(test.config, test.idle);
    model->set_recompute(test.recompute);
    member.cut(*model);
    const nn::SpreadScope scope(member.spread.get());
    const nn::ExpertSpreadScope experts_scope(member.experts.get());
    const nn::Loss loss = model->loss(batch_of(test.sequence, member.data_index()));
    loss.sum.backward();
    torch::Tensor sum = loss.sum.detach().clone().view({1});
    torch::Tensor counts = model->take_routed_counts();
    for (const auto& group : {member.data, member.context})
      if (group) group->all_reduce(sum);
    if (member.data) member.data->all_reduce(counts);
    const auto note = [&](double d, const std::string& name) {
      const std::lock_guard lock(mutex);
      if (!(d <= worst.first)) worst = {d, name};
    };
    note(std::abs(sum.item<double>() - expected.loss) / expected.loss, "loss");
    note(counts.equal(expected.counts) ? 0 : 1, "counts");
    for (const auto& p : model->named_parameters())
      note(difference(member.summed(p.value(), p.key()),
                      member.part(expected.gradients.at(p.key()), p.key())),
           p.key());
  });
  return worst;
}

void check(const Case& test, const Layout& layout) {
  CAPTURE(to_text(layout));
  CAPTURE(test.sequence);
  CAPTURE(test.config.moe.router);
  const auto [difference, name] = spread_difference(test, layout);
  CAPTURE(name);
  CHECK(difference < 1e-11);
}

// data, context, tensor, sequence; expert, expert_tensor
const std::vector<Layout> folded_over_data = {
    {2, 1, 1, false, 2, 1}, {4, 1, 1, false, 4, 1}, {3, 1, 1, false, 3, 1}, {2, 1, 1, false, 1, 2},
    {4, 1, 1, false, 2, 2}, {4, 1, 1, false, 2, 1}, {3, 1, 1, false, 1, 3}, {4, 1, 1, false, 1, 2}};
const std::vector<Layout> folded_over_tensor = {
    {1, 1, 2, true, 2, 1}, {1, 1, 2, false, 2, 1}, {1, 1, 4, true, 2, 2}, {1, 1, 4, false, 2, 2},
    {1, 1, 2, true, 1, 2}, {2, 1, 2, true, 4, 1},  {2, 1, 2, true, 2, 1}, {1, 2, 1, false, 2, 1},
    {1, 2, 2, true, 2, 2}, {1, 3, 1, false, 3, 1}};
const std::vector<Layout> not_folded = {{1, 1, 2, false, 1, 1},
                                        {1, 1, 3, true, 1, 1},
                                        {1, 1, 2, true, 1, 1, {{"mlp", "none"}}},
                                        {1, 1, 2, false, 1, 1, {{"mlp", "none"}}},
                                        {1, 2, 2, true, 1, 1},
                                        {2, 2, 1, false, 1, 1}};

void check_all(const std::vector<Layout>& layouts) {
  bool recompute = false;
  for (const Layout& layout : layouts)
    for (const auto& config : {softmax(), sigmoid()}) {
      check({config, 16, recompute}, layout);
      recompute = !recompute;
    }
}

TEST_CASE("experts folded over data ranks are the experts of one process") {
  check_all(folded_over_data);
}

TEST_CASE("experts folded over tensor and context ranks are the experts of one process") {
  check_all(folded_over_tensor);
}

TEST_CASE("experts cut on the tensor axis, or whole on it, are the experts of one process") {
  check_all(not_folded);
}

TEST_CASE("experts spread: ranks whose experts no token chose, and ranks without a token") {
  for (const bool recompute : {false, true}) {
    check({sigmoid(), 16, recompute, true}, {4, 1, 1, false, 4, 1});
    check({sigmoid(), 16, recompute, true}, {1, 1, 4, true, 2, 2});
    check({sigmoid(), 3, recompute}, {1, 1, 4, true, 4, 1});  // 6 tokens: 2, 2, 2, 0
    check({softmax(), 3, recompute}, {1, 1, 4, true, 2, 2});
  }
}

TEST_CASE("experts spread: more ranks than experts") {
  recipe::Model config = softmax();
  config.moe.experts = 3;
  check({config}, {4, 1, 1, false, 4, 1});  // runs of 1, 1, 1, 0
  config.moe.experts = 2;
  check({config}, {6, 1, 1, false, 3, 2});  // 1, 1, 0, in slices
}

TEST_CASE("experts spread: the losses' scopes and expert dropping are the whole micro-batch's") {
  recipe::Model config = sigmoid();
  config.moe.aux_scope = "global";
  config.moe.capacity_factor = 0.4;
  check({config, 17}, {1, 2, 2, true, 2, 2});
  check({config, 17}, {2, 1, 2, false, 4, 1});
}

}  // namespace
}  // namespace tutti::parallel
