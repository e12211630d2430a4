// What a rank of a layout holds, in bytes, before anything runs. Estimates: of tensors that live
// from one pass to another, not of buffers within an operation; docs/memory.md has the formulas and
// what they leave out.
//
//   state        Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
//                parameter models", 2020, section 3
//   activations  Korthikanti et al., "Reducing activation recomputation in large transformer
//                models", 2022, equations 1, 2, 4 and 5
#pragma once
#include <cstdint>

#include "plan/layout.h"
#include "recipe/recipe.h"

namespace tutti::plan {

// Bytes that one parameter costs.
struct StateBytes {
  double parameter = 4;  // as the passes see it
  double gradient = 4;
  double optimizer = 8;  // a master copy too, if the passes do not see fp32
};
// ZeRO `stage` shares, among `ranks`: 1 the optimizer's part, 2 also gradients, 3 all.
StateBytes zero_shared(const StateBytes& whole, int stage, double ranks);

// What is kept of a layer between its forward and its backward pass.
struct Kept {
  double value = 4;        // bytes of an activation
  double mask = 0;         // bytes of an element of dropout's masks; 0: no dropout
  double score = 0;        // bytes of a score of attention, with its mask; 0: none is kept
  bool gathered = false;   // sequence parallel: inputs of matrix products whole, not a rank's rows
  bool selective = false;  // computed again: norms (unless gathered), the activation before `down`
  bool spread = false;     // with scores: keys and values once a query head
  std::int64_t keys = 0;   // that a query has scores with; 0: `sequence`
};
// The layer of `model`, whose sizes must be resolved, for `samples` x `sequence` tokens, on one of
// `tensor` ranks. A mixture's layer (`mixture`) has every token's rows where it is routed to,
// evenly.
double layer_bytes(const recipe::Model& model, std::int64_t samples, std::int64_t sequence,
                   const Kept& kept, std::int64_t tensor = 1, bool sequence_parallel = false,
                   bool mixture = false);

// Elements of the parameters that the rank computes with, none of them gathered from data ranks.
struct ParameterCount {
  std::int64_t dense = 0, experts = 0;
  std::int64_t all() const { return dense + experts; }
};
ParameterCount parameters_of(const recipe::Recipe& recipe, const Layout& layout, int rank);

struct RankMemory {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0;
  double working = 0;  // the gradient of a micro-batch's widest activation, within backward
  double total() const { return parameters + gradients + optimizer + activations + working; }
};
// The recipe's sizes must be known (no model.from); a vocab of 0 counts as nothing.
RankMemory memory_of(const recipe::Recipe& recipe, const Layout& layout, int rank);

// What each layer of the model computes again. A number N: the first N layers of each stage, whole.
// auto: in each rank's stages the least that fits memory_budget, first norms and activations of
// layers from the first on, then whole layers; ConfigError if even all of that does not fit.
std::vector<recipe::Recompute> recompute_of(const recipe::Recipe& recipe, const Layout& layout);

// What the fullest rank holds; with recompute auto, the least budget that recompute_of takes. The
// budget itself does not matter.
double least_budget(const recipe::Recipe& recipe, const Layout& layout);

}  // namespace tutti::plan
