// The gradient's size: its norm, its clipping, its first bad parameter.
#pragma once
#include <torch/torch.h>

#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace tutti::optim {

// Sums of squares by blocks of 4096 elements of each parameter, counted from its first: whoever
// holds a block computes it, the table is summed over the ranks (each entry is zero on all but
// one), and added in a fixed tree. The same bits for any number of threads and ranks.
constexpr std::int64_t norm_block = 4096;
inline std::int64_t norm_blocks(std::int64_t size) { return (size + norm_block - 1) / norm_block; }

// The blocks of flat fp32 or fp64 elements (elsewhere: torch's sums) into out[0, norm_blocks).
void block_squares(const torch::Tensor& flat, double* out);
// The tree over a parameter's blocks, and over parameters: pairs of neighbours, again and again.
double tree_sum(std::vector<double> values);

// Of whole segments of one flat buffer: tree_sum of each one's tree_sum, in order.
double squared_norm(const torch::Tensor& flat, const std::vector<Segment>& segments);

// min(1, max_norm / (norm + 1e-6)), torch's clip_grad_norm_; 1 if max_norm is 0.
double clip_scale(double norm, double max_norm);

// The first segment that holds a NaN or an infinity, or "".
std::string first_non_finite(const torch::Tensor& flat, const std::vector<Segment>& segments);

}  // namespace tutti::optim
