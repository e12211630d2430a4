// Each fused operation at the peers' sizes (512 tokens, embed 256, 8 heads, mlp 688): microseconds
// forward and backward, fastest of many. Usage: nn_ops_bench; taskset to one core.
#include <malloc.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>

#include "nn/gemm.h"
#include "nn/ops.h"

namespace nn = tutti::nn;
using torch::Tensor;

namespace {

double microseconds() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double best(const std::function<void()>& run, int times = 100) {
  double fastest = 1e12;
  for (int i = 0; i < times; ++i) {
    const double begin = microseconds();
    run();
    fastest = std::min(fastest, microseconds() - begin);
  }
  return fastest;
}

void report(const char* name, const std::function<Tensor()>& forward, double megaflops = 0) {
  const Tensor once = forward(), gradient = torch::randn_like(once);
  const double ahead = best([&] { forward(); });
  const double both = best([&] { forward().backward(gradient); });
  std::printf("%-28s forward %7.0f us  backward %7.0f us", name, ahead, both - ahead);
  if (megaflops > 0)
    std::printf("  %5.0f %5.0f GFLOP/s", megaflops / ahead * 1e-3 * 1e3,
                2 * megaflops / (both - ahead));
  std::printf("\n");
}

}  // namespace

int main() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::set_num_threads(1);
  const auto leaf = [](std::vector<std::int64_t> shape) {
    return torch::randn(shape).mul_(0.1).requires_grad_(true);
  };
  const std::int64_t tokens = 512, embed = 256, mlp = 688;
  const nn::Heads heads{4, 128, 8, 4, 32};
  const Tensor x = leaf({tokens, embed}), y = leaf({tokens, embed}), weight = leaf({embed});
  const Tensor qkv = leaf({tokens, heads.row()}), wide = leaf({tokens, 2 * mlp});
  const Tensor angle = torch::randn({128, 16});
  const nn::Rope rope{angle.cos(), angle.sin()};
  report("add_norm", [&] { return nn::add_norm(x, y, weight, {}, 1e-5).second; });
  report("swiglu", [&] { return nn::swiglu(wide); });
  report("attention", [&] { return nn::attention(qkv, heads, rope, {}); });
  for (const auto& [in, out] : {std::pair{256, 512}, {256, 256}, {256, 1376}, {688, 256}}) {
    const Tensor a = leaf({tokens, in}), w = leaf({out, in});
    report((std::string("linear ") + std::to_string(in) + " -> " + std::to_string(out)).c_str(),
           [&] { return nn::linear(a, {{w, {}}}); }, 2e-6 * 512 * in * out * 1e3);
  }
  const auto product = [](std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
    const Tensor a = torch::randn({m, k}), b = torch::randn({k, n});
    Tensor c = torch::empty({m, n});
    const nn::Matrix left{a.data_ptr<float>(), ta ? m : k, ta},
        right{b.data_ptr<float>(), tb ? k : n, tb};
    const double ours =
        best([&] { nn::gemm(m, n, k, left, right, 0, c.data_ptr<float>(), n); }, 60);
    const double blas =
        best([&] { nn::blas_gemm(m, n, k, left, right, 0, c.data_ptr<float>(), n); }, 60);
    const double flops = 2e-3 * static_cast<double>(m * n * k);
    std::printf("gemm %4ld x %4ld x %4ld %c%c         ours %5.0f GFLOP/s    BLAS %5.0f GFLOP/s\n",
                m, n, k, ta ? 't' : 'n', tb ? 't' : 'n', flops / ours, flops / blas);
  };
  for (const auto& [in, out] : {std::pair{256, 512}, {256, 256}, {256, 1376}, {688, 256}}) {
    product(tokens, out, in, false, true);
    product(tokens, in, out, false, false);
    product(out, in, tokens, true, false);
  }
  product(1024, 1024, 1024, false, true);
  product(512, 3072, 768, false, true);
  product(3072, 768, 2048, true, false);
  const Tensor head = leaf({256, embed});
  const Tensor targets = torch::randint(256, {tokens}, torch::kLong);
  report("head_loss", [&] { return nn::head_loss(x, head, targets, nn::Use::only); });
  return 0;
}
