// parallel_reducer_bench [RANKS [TRANSPORT [PORT]]]: the sum of a gradient of 4 matrices [2048,
// 2048] over ranks that are processes, plain and with each policy. Verified: what all sent and have
// left is the gradient. Median milliseconds, and those of them that the operations took.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/error.h"
#include "parallel/reducer.h"

using namespace tutti;
using namespace tutti::parallel;

namespace {

constexpr int rounds = 5;
constexpr std::int64_t width = 2048, matrices = 4, total = matrices * width * width;

Reducer::Setup setup_of(const std::string& kind, std::shared_ptr<collective::Group> group) {
  Reducer::Setup setup;
  setup.compress.kind = kind;
  for (std::int64_t m = 0; m < matrices; ++m)
    setup.pieces.push_back(
        {str("matrix", m), {width, width}, m * width * width, width * width, {}});
  const Bucket bucket{0, matrices, 0, total};
  setup.regions.push_back({bucket, cut_bucket(setup.pieces, bucket, group->size())});
  setup.total = total;
  setup.group = std::move(group);
  return setup;
}

// Over all ranks and elements.
double total_of(const torch::Tensor& values, collective::Group& group) {
  const torch::Tensor sum = values.sum(torch::kDouble).view({1});
  group.all_reduce(sum);
  return sum.item<double>();
}

void verify(const Reducer& reducer, const torch::Tensor& own, const torch::Tensor& sum,
            collective::Group& group) {
  const double had = total_of(own, group), got = sum.sum(torch::kDouble).item<double>();
  double left = total_of(reducer.error(), group);
  if (reducer.sum_error().defined()) left += total_of(reducer.sum_error(), group);
  if (!(std::abs(got + left - had) < 1e-6 * total)) throw WorldError("wrong sum");
}

void run(const std::string& kind, const std::shared_ptr<collective::Group>& group) {
  const auto reducer = kind == "none" ? nullptr : make_reducer(setup_of(kind, group));
  const torch::Tensor own = torch::randn({total}), values = torch::empty({total});
  std::vector<std::pair<double, double>> seconds;  // in all, waited
  for (int round = 0; round < rounds; ++round) {
    values.copy_(own);
    group->barrier();
    const double start = real_clock().now(), waited = group->waited();
    if (reducer)
      reducer->start(0, values)->wait();
    else
      group->all_reduce(values);
    seconds.emplace_back(real_clock().now() - start, group->waited() - waited);
    if (round == 0 && reducer) {
      reducer->commit();
      verify(*reducer, own, values, *group);
    }
  }
  std::sort(seconds.begin(), seconds.end());
  const auto [all, waited] = seconds[rounds / 2];
  if (group->rank() == 0)
    std::printf("%-9s %8.1f ms  %8.1f of them waited\n", kind.c_str(), all * 1e3, waited * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  collective::GroupOptions options;
  options.size = options.local_size = argc > 1 ? std::atoi(argv[1]) : 2;
  options.transport = argc > 2 ? argv[2] : "gloo";
  options.port = argc > 3 ? std::atoi(argv[3]) : 29512;
  options.name = str("bench-", getpid());
  for (int r = 1; r < options.size && options.rank == 0; ++r)
    if (fork() == 0) options.rank = r;
  int status = 0;
  try {
    at::set_num_threads(1);
    torch::manual_seed(static_cast<std::uint64_t>(options.rank));
    const auto group = make_group(options);
    for (const char* kind : {"none", "bf16", "fp16", "int8", "int4", "sign", "topk", "powersgd"})
      run(kind, group);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  if (options.rank == 0)
    for (int child; wait(&child) > 0;) status |= child != 0;
  return status;
}
