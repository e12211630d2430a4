#include "parallel/compression.h"

#include "base/error.h"

namespace tutti::parallel {
namespace {

constexpr std::int64_t block = 256;

double largest(Compression kind) { return kind == Compression::int8 ? 127 : 7; }

std::int64_t blocks_of(std::int64_t count) { return (count + block - 1) / block; }

torch::Tensor bytes_of(const torch::Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(torch::kByte);
}

// [blocks, 256] fp32, zeros behind the last number.
torch::Tensor in_blocks(const torch::Tensor& values) {
  const torch::Tensor flat = values.reshape({-1}).to(torch::kFloat);
  const std::int64_t blocks = blocks_of(flat.numel());
  torch::Tensor rows = torch::zeros({blocks * block}, torch::kFloat);
  rows.narrow(0, 0, flat.numel()).copy_(flat);
  return rows.view({blocks, block});
}

// Two numbers of -7 to 7 in a byte.
torch::Tensor paired(const torch::Tensor& whole) {
  const torch::Tensor pairs = (whole + 8).to(torch::kByte).view({-1, 2});
  return pairs.select(1, 0) * 16 + pairs.select(1, 1);
}

torch::Tensor parted(const torch::Tensor& pairs) {
  const torch::Tensor high = torch::floor_divide(pairs, 16), low = pairs - high * 16;
  return torch::stack({high, low}, 1).view({-1}).to(torch::kFloat) - 8;
}

}  // namespace

Compression compression_of(const std::string& name) {
  if (name == "bf16") return Compression::bf16;
  TUTTI_ASSERT(name == "int8" || name == "int4", name);
  return name == "int8" ? Compression::int8 : Compression::int4;
}

torch::Tensor compressed(Compression kind, const torch::Tensor& values) {
  if (kind == Compression::bf16) return bytes_of(values.to(torch::kBFloat16));
  const torch::Tensor rows = in_blocks(values);
  if (rows.size(0) == 0) return torch::empty({0}, torch::kByte);
  const torch::Tensor scale = std::get<0>(rows.abs().max(1, true)) / largest(kind);
  const torch::Tensor divisor = torch::where(scale > 0, scale, torch::ones_like(scale));
  const torch::Tensor whole =
      torch::nan_to_num(rows / divisor).round().clamp(-largest(kind), largest(kind));
  const torch::Tensor flat = whole.view({-1}).narrow(0, 0, (values.numel() + 1) / 2 * 2);
  return torch::cat({bytes_of(scale), kind == Compression::int8 ? bytes_of(flat.to(torch::kChar))
                                                                : bytes_of(paired(flat))});
}

torch::Tensor expanded(Compression kind, const torch::Tensor& bytes, const torch::Tensor& like) {
  const std::int64_t count = like.numel(), blocks = blocks_of(count);
  const torch::Tensor own = bytes.clone();  // aligned
  if (kind == Compression::bf16) return own.view(torch::kBFloat16).view(like.sizes()).to(like);
  if (blocks == 0) return torch::empty_like(like);
  const auto scales = blocks * static_cast<std::int64_t>(sizeof(float));
  const torch::Tensor scale =
      own.narrow(0, 0, scales).clone().view(torch::kFloat).view({blocks, 1});
  const torch::Tensor rest = own.narrow(0, scales, own.numel() - scales).clone();
  const torch::Tensor whole =
      kind == Compression::int8 ? rest.view(torch::kChar).to(torch::kFloat) : parted(rest);
  torch::Tensor rows = torch::zeros({blocks * block}, torch::kFloat);
  rows.narrow(0, 0, whole.numel()).copy_(whole);
  return (rows.view({blocks, block}) * scale)
      .view({-1})
      .narrow(0, 0, count)
      .view(like.sizes())
      .to(like);
}

}  // namespace tutti::parallel
