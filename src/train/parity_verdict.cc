#include "train/parity_verdict.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "train/parity_layouts.h"

namespace tutti::train {
namespace {

// How the sentence calls an axis, and what each thing that differs means there.
struct AxisWords {
  const char *axis, *name, *forward, *gradient, *norm, *update;
};

constexpr AxisWords axis_words[] = {
    {"data", "data parallelism", "each rank must sum losses and targets over all micro-batches",
     "a sum over the data ranks or over micro-batches is missing or made twice",
     "replicas must count once between them", "replicas must make the same update"},
    {"zero", "ZeRO", "a unit's weights are wrong or old where a pass uses them",
     "a shard must get its own part of the sum over all data ranks",
     "each shard must count its own elements once",
     "shards must update their own elements with the same step number and rate"},
    {"tensor", "tensor parallelism",
     "a product cut along its inputs must be summed over the ranks, and a softmax over cut ids "
     "needs their common maximum and sum",
     "what all ranks read needs its gradient summed over the tensor axis, once",
     "weights that all ranks hold must count once, cut ones on every rank",
     "ranks that hold the same weights must update them alike"},
    {"sequence", "tensor parallelism with sequence parallel",
     "rows are gathered or scattered wrongly, or a mask begins at the wrong row",
     "weights that all ranks hold see some rows each: their gradients must be summed over the "
     "tensor axis",
     "weights that all ranks hold must count once, cut ones on every rank",
     "ranks that hold the same weights must update them alike"},
    {"context", "context parallelism",
     "look at the positions of this rank's tokens, at masks that cross ranks, and at how blocks of "
     "attention are merged",
     "gradients must be summed over the context axis, and those of keys and values must come home",
     "every rank of the axis has the same gradient: one counts",
     "ranks of the axis must update alike"},
    {"pipeline", "pipeline parallelism",
     "a stage gets another stage's or micro-batch's activations, or a part of the loss is lost",
     "a micro-batch's gradient is lost or counted twice on a stage, or a weight of two stages is "
     "not summed once",
     "a weight of two stages must count once", "a weight of two stages must be updated alike"},
    {"expert", "expert parallelism",
     "rows must reach the ranks of their experts and come back in their order",
     "gradients of experts must be summed over the ranks that hold the same ones only",
     "each expert must count once", "ranks that hold the same experts must update them alike"},
    {"expert_tensor", "expert tensor parallelism",
     "slices of an expert must be summed over the ranks that hold them",
     "rows must be gathered for all slices, and their gradients summed",
     "each slice must count once", "slices must be updated alike"},
};

const AxisWords* words_of(const std::string& axis) {
  for (const AxisWords& words : axis_words)
    if (axis == words.axis) return &words;
  return nullptr;
}

const Difference* of(const ParityRun& run, Quantity quantity) {
  for (const Difference& difference : run.tensors)
    if (difference.quantity == quantity) return &difference;
  return nullptr;
}

// What the first wrong thing of a step means on this axis.
std::string advice(const ParityRun& run, const AxisWords& words) {
  const std::int64_t step = run.tensors[0].step;
  const bool forward = of(run, Quantity::count) || of(run, Quantity::loss);
  if (step > 0 && forward)
    return str("step 1 to ", step,
               " agreed in all, their updates too: look for weights that passes do not see after "
               "an update; ",
               words.forward);
  if (of(run, Quantity::count))
    return "targets are counted wrongly: they must be summed over all ranks and micro-batches";
  if (forward) return words.forward;
  if (of(run, Quantity::gradient)) return str("its loss agrees: ", words.gradient);
  if (of(run, Quantity::norm)) return str("its loss and gradients agree: ", words.norm);
  return str("its loss, gradients and norm agree: ", words.update);
}

// Of each quantity the worst, those that are nearer the cause first.
std::string evidence(const ParityRun& run) {
  std::vector<std::string> texts;
  for (const Quantity q : {Quantity::count, Quantity::loss, Quantity::gradient, Quantity::norm,
                           Quantity::update, Quantity::state})
    if (const Difference* worst = of(run, q); worst && texts.size() < 3)
      texts.push_back(to_text(*worst));
  return join(texts, ", ");
}

std::string blame(const ParityRun& run) {
  const bool alone = run.axes.size() == 1;
  const AxisWords* words = run.axes.empty() ? nullptr : words_of(run.axes[0]);
  std::string who = alone && words ? str(words->name, " alone (", run.layout, ")")
                                   : str(run.name, " (", run.layout, ")");
  if (!run.error.empty()) return str(who, " fails: ", run.error, ".");
  who += str(" differs in step ", run.tensors[0].step + 1, ": ", evidence(run));
  return alone && words ? str(who, "; ", advice(run, *words), ".") : who + ".";
}

bool failed_alone(const ParityRun& run) { return run.axes.size() == 1 && !run.holds; }

// That contain no other that fails.
std::vector<const ParityRun*> culprits(const ParityReport& report, std::size_t axes) {
  std::vector<const ParityRun*> all;
  for (const ParityRun& run : report.runs) {
    if (run.axes.size() != axes || run.holds) continue;
    const bool explained =
        axes == 1 && std::any_of(report.runs.begin(), report.runs.end(), [&](const ParityRun& o) {
          return failed_alone(o) && contains_axis(run.axes[0], o.axes[0]);
        });
    if (!explained) all.push_back(&run);
  }
  return all;
}

}  // namespace

std::string difference_text(double value) {
  if (!std::isfinite(value)) return "not finite";
  std::ostringstream out;
  out.precision(2);
  out << value;
  return out.str();
}

std::string to_text(const Difference& d) {
  std::string text = quantity_names[static_cast<std::size_t>(d.quantity)];
  if (!d.detail.empty()) text = d.detail;
  if (!d.name.empty()) text += " of " + d.name;
  text += " by " + difference_text(d.value);
  if (d.factor != 0 && std::isfinite(d.value)) {
    std::ostringstream times;
    times.precision(4);
    times << d.factor;
    text += str(" (", times.str(), " times one device's)");
  }
  return text;
}

bool no_part_differs(const ParityReport& report) {
  return !report.runs[0].holds &&
         std::none_of(report.runs.begin(), report.runs.end(), failed_alone);
}

std::string verdict_of(const ParityReport& report) {
  if (report.holds)
    return str("In parity: ", report.runs[0].layout,
               " trains what one device trains, and so does each of its parts.");
  std::vector<const ParityRun*> found = culprits(report, 1);
  if (found.empty()) found = culprits(report, 2);
  if (found.empty())
    return "Each degree alone agrees, and so does each pair: it takes " + blame(report.runs[0]);
  std::vector<std::string> sentences;
  for (const ParityRun* run : found) {
    std::string sentence = blame(*run);
    sentence[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(sentence[0])));
    sentences.push_back(sentence);
  }
  return (found[0]->axes.size() == 2 ? "Each degree alone agrees. " : "") + join(sentences, " ");
}

}  // namespace tutti::train
