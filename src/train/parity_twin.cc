#include "train/parity_twin.h"

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "parallel/engines.h"

namespace tutti::train {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

Tensors copies_of(const std::vector<parallel::StateTensor>& state) {
  Tensors copies;
  for (const auto& tensor : state) copies[tensor.name] = tensor.value.clone();
  return copies;
}

// One loss rule, and nothing else: sums over micro-batches, divided once.
void plain_loop(const recipe::Recipe& recipe, parallel::Task& task, const parallel::StepInput& in,
                TwinStep& step) {
  const std::int64_t micro_batches = recipe.batch.global / recipe.batch.micro;
  for (std::int64_t id = 0; id < micro_batches; ++id) {
    torch::manual_seed(RandomStream(recipe.seed, "micro-batch", static_cast<std::uint64_t>(id))
                           .below(std::uint64_t{1} << 62, static_cast<std::uint64_t>(in.step)));
    task.at(in.step, id);
    const parallel::Loss loss = task.loss(in.batches(id));
    step.loss += loss.sum.item<double>();
    step.count += loss.count;
    if (loss.sum.requires_grad()) loss.sum.backward();
  }
  const torch::NoGradGuard no_grad;
  const double divisor = std::max(step.count, 1.0);
  step.loss /= divisor;
  double squares = 0;
  for (auto& named : task.module().named_parameters()) {
    torch::Tensor& parameter = named.value();
    if (!parameter.requires_grad()) continue;
    torch::Tensor& gradient = parameter.mutable_grad();
    const torch::Tensor mean = gradient.defined()
                                   ? gradient.contiguous() / divisor
                                   : torch::zeros(parameter.sizes(), parameter.options()).detach();
    squares += mean.to(torch::kDouble).square().sum().item<double>();
    step.gradients[named.key()] = mean;
    gradient.reset();
  }
  step.norm = std::sqrt(squares);
  task.take_counts();
}

}  // namespace

std::unique_ptr<parallel::Task> make_typed_task(const ParitySubject& subject,
                                                torch::ScalarType type) {
  const torch::NoGradGuard no_grad;
  auto task = subject.make_task();
  for (torch::Tensor& parameter : task->module().parameters())
    parameter.set_data(parameter.detach().to(type));
  return task;
}

parallel::StepInput parity_input(const recipe::Recipe& recipe, const Twin& twin,
                                 std::int64_t step) {
  parallel::StepInput input;
  input.step = step;
  input.lr = recipe.optimizer.lr;
  input.batches = [&batches = twin.batches[static_cast<std::size_t>(step)]](std::int64_t id) {
    return batches[static_cast<std::size_t>(id)];
  };
  return input;
}

Twin run_twin(const ParitySubject& subject, const ParityOptions& options) {
  Twin twin;
  const recipe::Recipe& recipe = subject.recipe;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    twin.batches.emplace_back();
    for (std::int64_t id = 0; id < recipe.batch.global / recipe.batch.micro; ++id)
      twin.batches.back().push_back(subject.batch(step, id));
  }
  recipe::Recipe alone = recipe;
  alone.parallel = {};
  const auto task =
      make_typed_task(subject, options.precision == "fp64" ? torch::kDouble : torch::kFloat);
  const auto engine = parallel::make_engine(alone, *task, collective::make_thread_groups(1)[0]);
  twin.parameters = engine->parameter_count();
  for (std::int64_t s = 0; s < options.steps; ++s) {
    TwinStep step;
    const parallel::StepInput input = parity_input(recipe, twin, s);
    step.before = copies_of(engine->state());
    plain_loop(recipe, *task, input, step);
    const parallel::StepOutcome outcome = engine->step(input);
    if (!outcome.applied)
      throw WorldError(str("on one device, step ", s, " has no finite gradient: ", outcome.culprit,
                           "; parity needs a model that trains"));
    step.after = copies_of(engine->state());
    twin.steps.push_back(std::move(step));
  }
  return twin;
}

}  // namespace tutti::train
