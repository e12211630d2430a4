// One process of a run: who it is, where its peers are, and what it must do when told to end.
#pragma once
#include <memory>
#include <string>

#include "base/fs.h"
#include "collective/group.h"
#include "recipe/recipe.h"

namespace tutti::train {

struct Worker {
  int rank = 0;
  int world_size = 1;
  int local_size = 1;
  std::string rendezvous;  // unique to the job; "" for a world of one
  fs::path folder;         // of the run
  bool resume = false;
};

// From TUTTI_RANK, TUTTI_WORLD_SIZE, TUTTI_RENDEZVOUS (see launch/job.h); a world of one without.
Worker worker_from_environment(const fs::path& folder, bool resume);

// Threads, allocator and denormals as training wants them. Call first in main.
void prepare_process(const recipe::Recipe& recipe);

// The group of all ranks. WorldError if peers do not come in time.
std::shared_ptr<collective::Group> open_group(const Worker& worker,
                                              const recipe::Parallel& parallel);

// From now on SIGINT and SIGTERM only set a flag, which stop_requested() reads.
void catch_stop_signals();
bool stop_requested();

}  // namespace tutti::train
