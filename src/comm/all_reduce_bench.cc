// all_reduce_bench [RANKS]: all-reduce of f32 between forked processes, verified; microseconds a
// call and bus bandwidth (2 (n - 1) / n x bytes / time) over shared memory, with buffers in
// ordinary and in shared memory, and over TCP, plain and sealed.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fs.h"
#include "comm/memory_group.h"
#include "testing/boards.h"

using namespace tutti;
using namespace tutti::comm;

namespace {

constexpr int calls = 5;

double median_seconds(Communicator& c, float* data, std::size_t count, int rounds) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    std::fill_n(data, count, static_cast<float>(c.rank() + round));
    c.barrier();
    c.all_reduce(data, count, DType::f32, Reduce::sum);
    const auto expected = static_cast<float>(c.size() * (c.size() - 1) / 2 + c.size() * round);
    if (std::count(data, data + count, expected) != static_cast<std::ptrdiff_t>(count))
      throw WorldError("wrong sum");
    // Several calls, as after a barrier the last to wake finds all its peers ready.
    const double start = real_clock().now();
    for (int i = 0; i < calls; ++i) c.all_reduce(data, count, DType::f32, Reduce::sum);
    seconds.push_back((real_clock().now() - start) / calls);
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[static_cast<std::size_t>(rounds / 2)];
}

void show(const char* name, double seconds, double bus_bytes) {
  std::printf("   %s %9.1f us %6.2f GB/s", name, seconds * 1e6, bus_bytes / seconds * 1e-9);
}

void run(Communicator& memory, Communicator& plain, Communicator& sealed) {
  const int rank = memory.rank(), size = memory.size();
  for (const std::size_t bytes : {4u, 4096u, 65536u, 1u << 20, 16u << 20, 64u << 20}) {
    const std::size_t count = bytes / sizeof(float);
    const int rounds = bytes > (1 << 20) ? 11 : 101;
    std::vector<float> own(count);
    auto* shared = static_cast<float*>(memory.allocate_shared(bytes));
    const double seconds[] = {median_seconds(memory, own.data(), count, rounds),
                              median_seconds(memory, shared, count, rounds),
                              median_seconds(plain, own.data(), count, rounds),
                              median_seconds(sealed, own.data(), count, rounds)};
    const double bus = 2.0 * (size - 1) / size * static_cast<double>(bytes);
    if (rank != 0) continue;
    std::printf("%10zu bytes", bytes);
    const char* names[] = {"ordinary", "shared", "tcp", "sealed"};
    for (int i = 0; i < 4; ++i) show(names[i], seconds[i], bus);
    std::printf("\n");
  }
}

void run_rank(int rank, int size, const std::string& name, const std::filesystem::path& folder) {
  testing::FolderBoard board(folder);
  const auto memory = join_shm(name, rank, size);
  const auto plain = join_tcp(board, "plain", rank, size);
  SocketOptions options;
  options.secret = "of this benchmark";
  options.encrypt = true;
  const auto sealed = join_tcp(board, "sealed", rank, size, options);
  run(*memory, *plain, *sealed);
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const TempFolder folder;
  const std::string name = str("bench-", getpid());
  int rank = 0;
  for (int r = 1; r < size && rank == 0; ++r)
    if (fork() == 0) rank = r;
  int status = 0;
  try {
    run_rank(rank, size, name, folder.path());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  if (rank != 0) _exit(status);
  for (int child; wait(&child) > 0;) status |= child != 0;
  return status;
}
