// Numbers in fewer bits, for wires that are slow. A block of 256 neighbours shares one fp32 scale,
// its largest magnitude over the largest whole number of the type; to the nearest, ties to even.
//
//   bf16   2 bytes a number                      int8   1 byte and 1/64, whole numbers to +-127
//   int4   half a byte and 1/64, to +-7
//
// What is sent is one value for whoever expands it. A block with a number that is not finite comes
// out as not finite.
#pragma once
#include <torch/torch.h>

#include <string>

namespace tutti::parallel {

enum class Compression { bf16, int8, int4 };
Compression compression_of(const std::string& name);  // "bf16", "int8", "int4"

// uint8 [bytes] of `values` (any shape and floating type).
torch::Tensor compressed(Compression kind, const torch::Tensor& values);
// In the shape and type of `like`, which has as many numbers.
torch::Tensor expanded(Compression kind, const torch::Tensor& bytes, const torch::Tensor& like);

}  // namespace tutti::parallel
