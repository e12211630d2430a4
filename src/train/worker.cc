#include "train/worker.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/memory_group.h"
#include "events/run_folder.h"
#include "plan/layout.h"

namespace tutti::train {
namespace {

// Of ranks that a run of more workers had.
void forget_flights(const Worker& worker) {
  const events::RunFolder run(worker.folder);
  std::error_code none;
  int rank = worker.world_size > 1 ? worker.world_size : 0;
  while (fs::remove(run.flight(rank), none)) ++rank;
}

// A disk without room for it is no reason not to train.
void record(collective::Group& group, const Worker& worker) {
  try {
    group.record(std::make_shared<comm::FlightRecorder>(
        events::RunFolder(worker.folder).flight(worker.rank), worker.rank, worker.world_size));
  } catch (const WorldError& error) {
    log_warning(str(error.what(), "; operations are not recorded"));
  }
}

static_assert(plan::most_shm_workers == comm::max_memory_ranks);

volatile std::sig_atomic_t stop_flag = 0;

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

// Rounding to bf16 only pays where the processor multiplies it: elsewhere it is emulated.
bool multiplies_bf16_fast() {
#if defined(__x86_64__) && defined(__clang__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

fs::path port_file(const Worker& worker) { return fs::path(worker.rendezvous) / "port"; }

// The port that rank 0 has left where the ranks of the job meet.
int await_port(const Worker& worker, double timeout) {
  const fs::path file = port_file(worker);
  const double start = real_clock().now();
  while (!fs::exists(file)) {
    if (real_clock().now() - start > timeout)
      throw WorldError(str("rank ", worker.rank, ": rank 0 named no port in ", file.string(),
                           " within ", timeout, " s"));
    if (stop_requested()) throw WorldError(str("rank ", worker.rank, ": told to stop"));
    real_clock().sleep(0.005);
  }
  return std::atoi(read_file(file).c_str());
}

}  // namespace

Worker worker_from_environment(const fs::path& folder, bool resume) {
  Worker worker;
  worker.rank = number_from("TUTTI_RANK", 0);
  worker.world_size = number_from("TUTTI_WORLD_SIZE", 1);
  worker.local_size = worker.world_size;
  if (const char* place = std::getenv("TUTTI_RENDEZVOUS")) worker.rendezvous = place;
  worker.folder = folder;
  worker.resume = resume;
  return worker;
}

void prepare_process(const recipe::Recipe& recipe) {
  if (recipe.precision == "fp32-fast" && multiplies_bf16_fast())
    at::globalContext().setFloat32MatmulPrecision("medium");
  // Activations come and go each step: giving their pages back costs a page fault each.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  at::set_num_threads(static_cast<int>(std::max<std::int64_t>(1, recipe.parallel.threads)));
  at::set_num_interop_threads(1);
}

std::shared_ptr<collective::Group> open_group(const Worker& worker,
                                              const recipe::Parallel& parallel) {
  collective::GroupOptions options;
  options.transport = parallel.transport;
  options.rank = worker.rank;
  options.size = worker.world_size;
  options.local_size = worker.local_size;
  options.name =
      worker.rendezvous.empty() ? str("tutti-", ::getpid()) : worker.rendezvous + "/world";
  options.group = "world";
  options.timeout = parallel.timeout;
  if (!options.in_memory() && worker.world_size > 1) {
    if (worker.rank == 0)
      options.publish = [&](int port) { write_file(port_file(worker), str(port)); };
    else
      options.port = await_port(worker, options.timeout);
  }
  auto group = collective::make_group(options);
  if (worker.rank == 0 && !worker.folder.empty()) forget_flights(worker);
  if (worker.world_size > 1 && !worker.folder.empty()) record(*group, worker);
  return group;
}

void catch_stop_signals() {
  struct sigaction action{};
  action.sa_handler = [](int) { stop_flag = 1; };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return stop_flag != 0; }

}  // namespace tutti::train
