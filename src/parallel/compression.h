// Numbers in fewer bits, for wires that are slow. Of every 256 neighbours a block is made with one
// fp32 scale s; a number x is sent as
//
//   bf16   itself, rounded; 2 bytes a number, and no blocks
//   fp16   x / s, s the power of two at or above the largest |x| of the block; 2 bytes
//   int8   the whole number nearest to x / s, s = largest |x| / 127; 1 byte
//   int4   the same with s = largest |x| / 7; half a byte
//   sign   whether x < 0, for -s or s, s = mean |x|; 1 bit
//
// and 1/64 byte for the scale. To the nearest, ties to even.
//
// What is sent is one value for whoever expands it, also the sender. A block with a number that is
// not finite comes out as not finite.
#pragma once
#include <torch/torch.h>

#include <string>

namespace tutti::parallel {

enum class Compression { bf16, fp16, int8, int4, sign };
Compression compression_of(const std::string& name);  // as they are called here

// uint8 [bytes] of `values` (any shape and floating type).
torch::Tensor compressed(Compression kind, const torch::Tensor& values);
// In the shape and type of `like`, which has as many numbers.
torch::Tensor expanded(Compression kind, const torch::Tensor& bytes, const torch::Tensor& like);

// The same without new tensors: `bytes` is contiguous and has compressed_size() of them, `values`
// is contiguous, fp32 or fp64.
std::int64_t compressed_size(Compression kind, std::int64_t count);
void compress(Compression kind, const torch::Tensor& values, const torch::Tensor& bytes);
// values += factor * what was sent.
void add_expanded(Compression kind, const torch::Tensor& bytes, const torch::Tensor& values,
                  double factor = 1);

}  // namespace tutti::parallel
