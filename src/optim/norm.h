// The gradient's size: its norm, its clipping, its first bad parameter.
#pragma once
#include <torch/torch.h>

#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace tutti::optim {

// Sum of squares of a flat fp32 or fp64 CPU tensor (elsewhere: torch's sum): fp64 sums over blocks
// of 4096 elements, added in a fixed tree. The same bits for any number of threads and ranks.
double squared_norm(const torch::Tensor& flat);

// min(1, max_norm / (norm + 1e-6)), torch's clip_grad_norm_; 1 if max_norm is 0.
double clip_scale(double norm, double max_norm);

// The first segment that holds a NaN or an infinity, or "".
std::string first_non_finite(const torch::Tensor& flat, const std::vector<Segment>& segments);

}  // namespace tutti::optim
