#include "cli/worker_bench.h"

#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "collective/group.h"
#include "comm/cost.h"
#include "comm/measure.h"
#include "train/worker.h"

namespace tutti::cli {
namespace {

constexpr double meeting_seconds = 60;

using CommPtr = std::unique_ptr<comm::Communicator>;

CommPtr join(const std::string& transport, const train::Worker& worker) {
  collective::GroupOptions options;
  options.transport = transport;
  options.group = "bench";
  options.timeout = meeting_seconds;
  train::Worker here = worker;
  here.rendezvous += "/" + transport;
  make_folders(here.rendezvous);
  options.name = here.rendezvous;
  train::find_peers(here, options);
  return collective::make_communicator(options);
}

// A table of one transport, operation and kind of buffer, with the line through it.
Json table_of(comm::Communicator& c, const CommBench& bench, const std::string& operation,
              const char* memory, comm::MeasureBuffers buffers) {
  std::vector<std::size_t> sizes = bench.sizes;
  if (operation == "barrier") sizes = {0};
  Json points = Json::array();
  std::vector<comm::CostPoint> costs;
  for (const std::size_t bytes : sizes) {
    const comm::Timing timing = comm::measure(c, operation, bytes, buffers, bench.seconds);
    const double rate = static_cast<double>(bytes) / timing.seconds;
    points.push_back({{"bytes", bytes},
                      {"seconds", timing.seconds},
                      {"algorithm_bandwidth", rate},
                      {"bus_bandwidth", rate * comm::traffic_factor(operation, c.size())},
                      {"calls", timing.calls},
                      {"samples", timing.samples}});
    costs.push_back({static_cast<double>(bytes), timing.seconds});
  }
  const comm::CostLine line = comm::fit_cost(costs);
  return {{"transport", c.transport()},
          {"operation", operation},
          {"buffers", memory},
          {"ranks", c.size()},
          {"alpha", line.alpha},
          {"beta", line.beta},
          {"points", points}};
}

void measure_transport(comm::Communicator& c, const CommBench& bench, Json& tables) {
  const std::size_t room = comm::measure_room(bench.sizes.back(), c.size());
  std::vector<float> in(room / sizeof(float)), out(room / sizeof(float));
  auto* shared_in = static_cast<float*>(c.allocate_shared(room));
  auto* shared_out = static_cast<float*>(c.allocate_shared(room));
  for (const std::string& operation : bench.operations) {
    if (shared_in && shared_out)
      tables.push_back(table_of(c, bench, operation, "shared", {shared_in, shared_out}));
    if (operation != "barrier" || !shared_out)
      tables.push_back(table_of(c, bench, operation, "ordinary", {in.data(), out.data()}));
  }
}

Json memory_of(comm::Communicator& c, const CommBench& bench) {
  const comm::MemoryRates rates = comm::measure_memory(c, bench.sizes.back(), bench.seconds);
  return {{"bytes", bench.sizes.back()}, {"copy", rates.copy},     {"triad", rates.triad},
          {"update", rates.update},      {"limit", rates.limit()}, {"all_reduce_share", nullptr}};
}

// Of the memory's limit, what the largest all-reduce in shared buffers attains.
void add_share(Json& profile) {
  const auto bytes = profile["memory"]["bytes"].get<std::size_t>();
  for (const Json& table : profile["tables"]) {
    if (table["operation"] != "all_reduce" || table["buffers"] != "shared") continue;
    const double moved = comm::all_reduce_traffic(bytes, profile["ranks"].get<int>());
    profile["memory"]["all_reduce_share"] = moved /
                                            table["points"].back()["seconds"].get<double>() /
                                            profile["memory"]["limit"].get<double>();
  }
}

}  // namespace

void bench_comm(const CommBench& bench) {
  const train::Worker worker = train::worker_from_environment("", false);
  Json profile = {{"format", "tutti comm profile"}, {"version", 1},  {"ranks", worker.world_size},
                  {"cores", bench.cores},           {"type", "F32"}, {"memory", nullptr},
                  {"tables", Json::array()}};
  for (const std::string& transport : bench.transports) {
    const CommPtr communicator = join(transport, worker);
    try {
      if (profile["memory"].is_null()) profile["memory"] = memory_of(*communicator, bench);
      measure_transport(*communicator, bench, profile["tables"]);
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
  }
  add_share(profile);
  if (worker.rank == 0) write_file(bench.result, profile.dump());
}

}  // namespace tutti::cli
