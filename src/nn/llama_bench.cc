// Forward and backward of the peers' Llama (/bench/peers: 256 embed, 4 layers, 8 heads, 4 key
// heads, mlp 688, vocab 256, 4 x 128 tokens): fused operations against the same model in plain
// torch ops. Both compute the same loss and gradients, which is checked first. Usage:
// nn_llama_bench [threads] [plain|fused]; taskset to one core a thread for steady numbers. Reports
// the fastest of the runs.
#include <malloc.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nn/kernels.h"
#include "nn/model.h"
#include "nn/ops.h"

namespace nn = tutti::nn;

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Writes each gradient to its place in one flat buffer, as the trainer does.
struct FlatSink : nn::GradSink {
  std::map<const void*, torch::Tensor> places;
  explicit FlatSink(torch::nn::Module& module) {
    std::int64_t size = 0;
    for (const auto& p : module.parameters()) size += p.numel();
    const auto flat = torch::zeros({size});
    size = 0;
    for (const auto& p : module.parameters()) {
      places[p.unsafeGetTensorImpl()] = flat.narrow(0, size, p.numel()).view(p.sizes());
      size += p.numel();
    }
  }
  Target target(const torch::Tensor& p) override {
    return {places.at(p.unsafeGetTensorImpl()), false};
  }
  void ready(const torch::Tensor&) override {}
};

double best_step(nn::LanguageModel& model, const nn::TokenBatch& batch, int runs) {
  FlatSink sink(model);
  nn::GradSinkScope scope(&sink);
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const double begin = seconds();
    model.loss(batch).sum.div(512).backward();
    best = std::min(best, seconds() - begin);
  }
  return best;
}

double best_gemm() {
  const auto a = torch::randn({1024, 1024}), b = torch::randn({1024, 1024});
  auto c = torch::empty({1024, 1024});
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const double begin = seconds();
    at::mm_out(c, a, b);
    best = std::min(best, seconds() - begin);
  }
  return 2.0 * 1024 * 1024 * 1024 / best;
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  const char* only = argc > 2 ? argv[2] : "";
  tutti::recipe::Model config;
  config.vocab = 256, config.kv_heads = 4, config.mlp = 688;
  const auto model = nn::make_model(nn::resolve(config, 128));
  nn::initialise(*model, 1);
  nn::TokenBatch batch;
  batch.inputs = torch::randint(256, {4, 128}, torch::kLong);
  batch.targets = torch::randint(256, {4, 128}, torch::kLong);

  const double peak = best_gemm(), flops = model->flops_per_token(128) * 512;
  std::printf("kernels %s, sgemm %.0f GFLOP/s\n", nn::kernels().level, peak / 1e9);
  double fused = 0, plain = 0;
  if (std::strcmp(only, "plain") != 0) fused = best_step(*model, batch, 60);
  if (std::strcmp(only, "fused") != 0) {
    nn::PlainOps ops;
    plain = best_step(*model, batch, 30);
  }
  if (fused > 0)
    std::printf("fused  %.2f ms a micro-batch, %.0f tokens/s, %.3f of sgemm\n", fused * 1e3,
                512 / fused, flops / fused / peak);
  if (plain > 0)
    std::printf("plain  %.2f ms a micro-batch, %.0f tokens/s, %.3f of sgemm\n", plain * 1e3,
                512 / plain, flops / plain / peak);
  if (fused > 0 && plain > 0) std::printf("ratio  %.2f\n", plain / fused);
  return 0;
}
