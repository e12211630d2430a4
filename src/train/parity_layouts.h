// The parts of a layout: each of its degrees alone, and pairs of them.
#pragma once
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace tutti::train {

struct SubLayout {
  std::string name;               // "tensor", "tensor + context"
  std::vector<std::string> axes;  // of it
  recipe::Parallel parallel;
};

// "workers 4, tensor 2 with sequence parallel, context 2 (ring)". Layouts with equal text are one.
std::string describe_layout(const recipe::Parallel& layout);

// Each degree of recipe.parallel that is above 1, alone: data, zero, tensor, sequence (tensor ranks
// with sequence parallel), context, pipeline, expert, expert_tensor. Those that are no layout
// (plan::layout_violations) are left out, and `notes` says why.
std::vector<SubLayout> single_layouts(const recipe::Recipe& recipe,
                                      std::vector<std::string>& notes);
// Pairs that are not contained in each other, as the layout has them, and are not all of it.
std::vector<SubLayout> paired_layouts(const recipe::Recipe& recipe);

// Whether `inner` is a part of `outer` alone: data of zero, tensor of sequence.
bool contains_axis(const std::string& outer, const std::string& inner);

}  // namespace tutti::train
