// An update of a flat buffer: moments in bf16 beside fp32. COUNT of elements, 1 thread; the median
// ratio of pairs of runs, after both have given nearly the same weights.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "optim/optimizer.h"

namespace {

using namespace tutti;

struct Side {
  torch::Tensor master;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::int64_t step = 0;

  double run(const torch::Tensor& gradient) {
    const auto start = std::chrono::steady_clock::now();
    optimizer->step(master, gradient, ++step, 1e-3, 1);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

Side side(const std::string& name, const std::string& state, const torch::Tensor& start) {
  recipe::Optimizer recipe;
  recipe.name = name;
  recipe.state = state;
  Side made{start.clone(), nullptr};
  const std::int64_t count = start.numel();
  made.optimizer = optim::make_optimizer(recipe, {{"w", 0, count, {1, count}}}, made.master);
  return made;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int count, char** arguments) {
  at::set_num_threads(1);
  const std::int64_t size = count > 1 ? std::atoll(arguments[1]) : 8 << 20;
  torch::manual_seed(1);
  const torch::Tensor start = torch::randn({size}), gradient = torch::randn({size});
  for (const char* name : {"adamw", "sgd"}) {
    Side exact = side(name, "fp32", start), half = side(name, "bf16", start);
    std::vector<double> times, ratios;
    for (int i = 0; i < 31; ++i) {
      const double a = exact.run(gradient), b = half.run(gradient);
      if (i == 0) continue;  // it touches new pages
      times.push_back(a);
      ratios.push_back(b / a);
    }
    const double apart =
        ((half.master - exact.master).norm() / (exact.master - start).norm()).item<double>();
    if (!(apart < 0.01)) return std::printf("%s: weights are apart by %g\n", name, apart), 1;
    std::printf("%-6s %5.2f ns an element, bf16 moments x %.2f\n", name,
                median(times) / static_cast<double>(size) * 1e9, median(ratios));
  }
  return 0;
}
