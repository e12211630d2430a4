// One model on one device, and the same model spread: loss and every gradient, in fp64.
#include "parallel/mesh_spread.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "mesh/device_mesh.h"
#include "nn/model.h"
#include "testing/ranks.h"

namespace tutti::parallel {
namespace {

const std::map<std::string, std::string> rules = {{"heads", "tensor"},
                                                  {"kv_heads", "tensor"},
                                                  {"qkv", "tensor"},
                                                  {"mlp", "tensor"},
                                                  {"vocab", "tensor"}};

struct Layout {
  int tensor = 1;
  bool sequence_parallel = false;
  int ring = 1, ulysses = 1;
  bool gather = false;
  int chunks = 1;
  int ranks() const { return tensor * ring * ulysses; }
};

std::string to_text(const Layout& l) {
  return str("tensor ", l.tensor, l.sequence_parallel ? " sequence" : "", ", ring ", l.ring,
             l.gather ? " (gather)" : "", ", ulysses ", l.ulysses, ", chunks ", l.chunks);
}

recipe::Model llama() {
  recipe::Model m;
  m.vocab = 37;  // divisible by nothing
  m.layers = 2;
  m.embed = 24;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 6;
  m.mlp = 22;
  m.qk_norm = true;
  m.qkv_bias = true;
  return nn::resolve(m, 17);
}

recipe::Model gpt2(double dropout) {
  recipe::Model m;
  m.family = "gpt2";
  m.vocab = 37;
  m.layers = 2;
  m.embed = 24;
  m.heads = 6;
  m.tied = true;
  m.dropout = dropout;
  return nn::resolve(m, 17);
}

std::shared_ptr<nn::LanguageModel> model_of(const recipe::Model& config) {
  auto model = nn::make_model(config);
  nn::initialise(*model, 7);
  model->to(torch::kDouble);
  // Biases and norms other than 0 and 1, so that one counted twice is seen.
  torch::NoGradGuard no_grad;
  std::int64_t i = 0;
  for (auto& p : model->named_parameters())
    if (p.value().dim() == 1) p.value().add_(torch::linspace(-0.2, 0.3, p.value().size(0)) * ++i);
  model->set_dropout_key({11, 3, 2});
  return model;
}

nn::TokenBatch batch_of(std::int64_t sequence, bool documents) {
  torch::manual_seed(5);
  nn::TokenBatch batch{torch::randint(0, 37, {2, sequence}, torch::kLong),
                       torch::randint(0, 37, {2, sequence}, torch::kLong),
                       {}};
  batch.targets.narrow(1, 3, sequence / 2).fill_(-1);  // ragged: some ranks have few targets
  if (documents) {
    batch.documents = torch::zeros({2, sequence}, torch::kInt);
    batch.documents[0].narrow(0, 5, sequence - 5).fill_(1);
    batch.documents[0].narrow(0, 6, sequence - 6).fill_(2);
    batch.documents[1].narrow(0, sequence - 4, 4).fill_(1);
  }
  return batch;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, torch::Tensor> gradients;
};

Outcome alone(const recipe::Model& config, const nn::TokenBatch& batch) {
  const auto model = model_of(config);
  const nn::Loss loss = model->loss(batch);
  loss.sum.backward();
  Outcome outcome{loss.sum.item<double>(), {}};
  for (const auto& p : model->named_parameters()) outcome.gradients[p.key()] = p.value().grad();
  return outcome;
}

double difference(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a - b).abs().max().item<double>() / (1e-3 + b.abs().max().item<double>());
}

// The worst relative difference of any gradient, with its name.
std::pair<double, std::string> spread_difference(const recipe::Model& config, const Layout& layout,
                                                 const nn::TokenBatch& batch,
                                                 const Outcome& expected, bool recompute) {
  const DeviceMesh mesh(
      {{"ring", layout.ring}, {"ulysses", layout.ulysses}, {"tensor", layout.tensor}},
      layout.ranks());
  auto world = collective::make_thread_groups(layout.ranks());
  std::mutex mutex;
  std::pair<double, std::string> worst{0, ""};
  testing::run_members(world, [&](int rank, collective::Group& all) {
    const auto along = [&](const char* axis) {
      const auto group = all.subgroup(mesh.group(rank, axis), axis);
      return group->size() > 1 ? group : nullptr;
    };
    const auto tensor = along("tensor"), ring = along("ring"), ulysses = along("ulysses");
    MeshSpread spread(tensor, layout.sequence_parallel,
                      ring || ulysses
                          ? std::make_unique<ContextAttention>(ring, ulysses, layout.gather)
                          : nullptr,
                      layout.chunks);
    const auto model = model_of(config);
    model->set_recompute(recompute);
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
    for (const auto& p : model->named_parameters())
      shapes.emplace_back(p.key(), p.value().sizes().vec());
    const auto cuts = cut_parameters(shapes, {model->axes(), model->grains()}, rules,
                                     {layout.tensor}, {mesh.coordinate(rank, "tensor")});
    for (const Cut& cut : cuts) {
      torch::Tensor parameter = model->named_parameters()[cut.name];
      parameter.set_data(take(parameter.detach(), cut));
      spread.set_cut(parameter, cut);
    }
    const nn::SpreadScope scope(&spread);
    const nn::Loss loss = model->loss(batch);
    loss.sum.backward();
    torch::Tensor sum = loss.sum.detach().clone().view({1});
    for (const auto& group : {ring, ulysses})
      if (group) group->all_reduce(sum);
    const auto note = [&](double d, const std::string& name) {
      const std::lock_guard lock(mutex);
      if (!(d <= worst.first)) worst = {d, name};
    };
    note(std::abs(sum.item<double>() - expected.loss) / expected.loss, "loss");
    for (const Cut& cut : cuts) {
      const torch::Tensor parameter = model->named_parameters()[cut.name];
      torch::Tensor gradient =
          parameter.grad().defined() ? parameter.grad().contiguous() : torch::zeros_like(parameter);
      if (spread.sums_gradient(parameter)) tensor->all_reduce(gradient);
      for (const auto& group : {ring, ulysses})
        if (group) group->all_reduce(gradient);
      note(difference(gradient, take(expected.gradients.at(cut.name), cut)), cut.name);
    }
  });
  return worst;
}

const std::vector<Layout> layouts = {{2, false},
                                     {2, true},
                                     {3, true},
                                     {4, false},
                                     {4, true},
                                     {5, true},
                                     {1, false, 2},
                                     {1, false, 3},
                                     {1, false, 4},
                                     {1, false, 2, 1, true},
                                     {1, false, 3, 1, true},
                                     {1, false, 1, 2},
                                     {1, false, 2, 2},
                                     {1, false, 2, 2, true},
                                     {2, true, 2},
                                     {2, false, 1, 2},
                                     {2, true, 2, 1, true},
                                     {2, true, 2, 2},
                                     {2, true, 1, 1, false, 2},
                                     {2, false, 1, 1, false, 3},
                                     {3, true, 1, 1, false, 4},
                                     {4, false, 1, 1, false, 2},
                                     {2, true, 2, 1, false, 3}};

void check(const recipe::Model& config, const Layout& layout, std::int64_t sequence, bool documents,
           bool recompute) {
  if (config.kv_heads % (layout.tensor * layout.ulysses) != 0 && layout.ulysses > 1) return;
  CAPTURE(to_text(layout));
  CAPTURE(sequence);
  const nn::TokenBatch batch = batch_of(sequence, documents);
  const auto [difference, name] =
      spread_difference(config, layout, batch, alone(config, batch), recompute);
  CAPTURE(name);
  CHECK(difference < 1e-11);
}

TEST_CASE("llama spread over tensor and context ranks is llama") {
  for (const Layout& layout : layouts)
    for (const std::int64_t sequence : {16, 17})
      check(llama(), layout, sequence, sequence == 17, false);
}

TEST_CASE("gpt2, tied, with dropout, spread is gpt2; also recomputed") {
  for (const Layout& layout : layouts)
    for (const double dropout : {0.0, 0.25}) check(gpt2(dropout), layout, 17, true, dropout > 0);
}

}  // namespace
}  // namespace tutti::parallel
