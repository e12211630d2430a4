#include "train/worker.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
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

fs::path store_file(const Worker& worker) { return fs::path(worker.rendezvous) / "store"; }

// 256 bits.
std::string random_secret() {
  std::array<std::uint64_t, 4> numbers{};
  if (::getrandom(numbers.data(), sizeof numbers, 0) != sizeof numbers)
    throw WorldError(str("no random bytes: ", errno_text()));
  std::string text;
  for (const std::uint64_t number : numbers) text += hex64(number);
  return text;
}

// What rank 0 has left for the others: "host port secret".
std::string await_store(const Worker& worker, double timeout) {
  const fs::path file = store_file(worker);
  const double start = real_clock().now();
  while (!fs::exists(file)) {
    if (real_clock().now() - start > timeout)
      throw WorldError(str("rank ", worker.rank, ": rank 0 did not say where it is in ",
                           file.string(), " within ", timeout,
                           " s; TUTTI_RENDEZVOUS must be a folder that all hosts see"));
    if (stop_requested()) throw WorldError(str("rank ", worker.rank, ": told to stop"));
    real_clock().sleep(0.005);
  }
  return read_file(file);
}

void forget_store(const Worker& worker) {
  std::error_code none;
  fs::remove(store_file(worker), none);
}

// Hosts may see the folder where they meet under different paths; its own name is unique.
std::string name_of_world(const Worker& worker) {
  if (worker.rendezvous.empty()) return str("tutti-", ::getpid());
  const fs::path place = worker.rendezvous;
  const bool here = worker.local_size == worker.world_size;
  return str(here ? place.string() : place.filename().string(), "/world");
}

}  // namespace

Worker worker_from_environment(const fs::path& folder, bool resume) {
  Worker worker;
  worker.rank = number_from("TUTTI_RANK", 0);
  worker.world_size = number_from("TUTTI_WORLD_SIZE", 1);
  worker.local_size = number_from("TUTTI_LOCAL_SIZE", worker.world_size);
  if (const char* place = std::getenv("TUTTI_RENDEZVOUS")) worker.rendezvous = place;
  if (const char* address = std::getenv("TUTTI_ADDRESS")) worker.address = address;
  if (worker.local_size < worker.world_size && worker.address.empty())
    throw ConfigError({{"TUTTI_ADDRESS", "", "",
                        "must be set when ranks are on several hosts (TUTTI_LOCAL_SIZE is below "
                        "TUTTI_WORLD_SIZE)",
                        "the address by which the other hosts reach this one"}});
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

void find_peers(const Worker& worker, collective::GroupOptions& options) {
  options.rank = worker.rank;
  options.size = worker.world_size;
  options.local_size = worker.local_size;
  if (!worker.address.empty()) options.address = worker.address;
  if (options.in_memory() || worker.world_size == 1) return;
  if (worker.rank == 0) {
    options.host = options.address;
    options.secret = random_secret();
    options.publish = [&, file = store_file(worker)](int port) {
      write_private_file(file, str(options.host, " ", port, " ", options.secret));
    };
    return;
  }
  std::istringstream text(await_store(worker, options.timeout));
  text >> options.host >> options.port >> options.secret;
}

std::shared_ptr<collective::Group> open_group(const Worker& worker,
                                              const recipe::Parallel& parallel) {
  collective::GroupOptions options;
  options.transport = parallel.transport;
  options.encrypt = parallel.encrypt;
  options.name = name_of_world(worker);
  options.group = "world";
  options.timeout = parallel.timeout;
  find_peers(worker, options);
  auto group = collective::make_group(options);
  if (worker.rank == 0 && options.publish) forget_store(worker);  // all have it, or never will
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
