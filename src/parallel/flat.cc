#include "parallel/flat.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"

namespace tutti::parallel {

FlatParameters::FlatParameters(torch::nn::Module& module, torch::ScalarType compute_type) {
  torch::NoGradGuard no_grad;
  std::unordered_set<const c10::TensorImpl*> seen;
  std::int64_t total = 0;
  auto master_type = torch::kFloat;
  torch::Device device = torch::kCPU;
  for (auto& named : module.named_parameters()) {
    torch::Tensor& parameter = named.value();
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    if (parameter.scalar_type() == torch::kDouble) master_type = torch::kDouble;
    device = parameter.device();
    pieces_.push_back({named.key(), parameter.sizes().vec(), total, parameter.numel(), parameter});
    total += aligned(parameter.numel());
  }
  if (pieces_.empty()) throw ConfigError("the model has no parameter that requires a gradient");

  master_ = torch::zeros({total}, torch::dtype(master_type).device(device));
  const bool full = compute_type == master_type || master_type == torch::kDouble;
  compute_ = full ? master_ : torch::zeros({total}, torch::dtype(compute_type).device(device));
  for (Piece& piece : pieces_) {
    view(master_, piece).copy_(piece.parameter);
    piece.parameter.set_data(view(compute_, piece));
  }
  refresh_compute();
}

torch::Tensor FlatParameters::view(const torch::Tensor& flat, const Piece& piece) {
  return flat.narrow(0, piece.offset, piece.size).view(piece.shape);
}

void FlatParameters::refresh_compute() {
  torch::NoGradGuard no_grad;
  if (mixed()) compute_.copy_(master_);
}

std::vector<Bucket> make_buckets(const std::vector<Piece>& pieces, std::int64_t total_size,
                                 std::int64_t bucket_bytes, std::int64_t element_bytes) {
  std::vector<Bucket> buckets;
  std::int64_t end_offset = total_size;
  for (std::size_t end = pieces.size(); end > 0;) {
    std::size_t first = end - 1;
    while (first > 0 && (end_offset - pieces[first - 1].offset) * element_bytes <= bucket_bytes)
      --first;
    buckets.push_back({first, end, pieces[first].offset, end_offset - pieces[first].offset});
    end_offset = pieces[first].offset;
    end = first;
  }
  return buckets;
}

}  // namespace tutti::parallel
