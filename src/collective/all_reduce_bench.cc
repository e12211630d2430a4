// collective_all_reduce_bench [RANKS [PORT]]: all-reduce of f32 tensors along the fixed tree,
// shared memory against Gloo in one run, verified. Median microseconds, and the ratio to shared
// buffers.
#include <ATen/ATen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "collective/group.h"

using namespace tutti;
using namespace tutti::collective;

namespace {

constexpr int calls = 5;

double median_seconds(Group& group, at::Tensor data, int rounds) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    data.fill_(group.rank() + round);
    group.barrier();
    group.all_reduce(data);
    const int size = group.size();
    if (!data.eq(size * (size - 1) / 2 + size * round).all().item<bool>())
      throw WorldError("wrong sum");
    // Several calls, as after a barrier the last to wake finds all its peers ready.
    const double start = real_clock().now();
    for (int i = 0; i < calls; ++i) group.all_reduce(data);
    seconds.push_back((real_clock().now() - start) / calls);
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[static_cast<std::size_t>(rounds / 2)];
}

void run(GroupOptions options) {
  options.transport = "shm";
  const auto shm = make_group(options);
  options.transport = "gloo";
  const auto gloo = make_group(options);
  for (const std::int64_t count : {1ll, 1024ll, 16384ll, 262144ll, 4194304ll, 16777216ll}) {
    const int rounds = count > 262144 ? 3 : 21;
    const double ordinary = median_seconds(*shm, at::empty({count}), rounds);
    const double shared = median_seconds(*shm, shm->empty_shared(count, at::kFloat), rounds);
    const double peer = median_seconds(*gloo, at::empty({count}), rounds);
    if (options.rank == 0)
      std::printf("%9lld floats  shm %9.1f us  shm, shared %9.1f us  gloo %9.1f us  ratio %.1f\n",
                  static_cast<long long>(count), ordinary * 1e6, shared * 1e6, peer * 1e6,
                  peer / shared);
  }
}

}  // namespace

int main(int argc, char** argv) {
  GroupOptions options;
  options.size = options.local_size = argc > 1 ? std::atoi(argv[1]) : 2;
  options.port = argc > 2 ? std::atoi(argv[2]) : 29511;
  options.name = str("bench-", getpid());
  for (int r = 1; r < options.size && options.rank == 0; ++r)
    if (fork() == 0) options.rank = r;
  int status = 0;
  try {
    at::set_num_threads(1);
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  if (options.rank == 0)
    for (int child; wait(&child) > 0;) status |= child != 0;
  return status;
}
