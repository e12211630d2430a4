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
  int local_size = 1;      // ranks on this host
  std::string rendezvous;  // a folder that all hosts see, unique to the job; "": a world of one
  std::string address;     // by which other hosts reach this one; "": there are none
  fs::path folder;         // of the run
  bool resume = false;
};

// From TUTTI_RANK, TUTTI_WORLD_SIZE, TUTTI_RENDEZVOUS, TUTTI_LOCAL_SIZE, TUTTI_ADDRESS (see
// launch/job.h); a world of one without. ConfigError for ranks on several hosts without an address.
Worker worker_from_environment(const fs::path& folder, bool resume);

// Threads, allocator and denormals as training wants them. Call first in main.
void prepare_process(const recipe::Recipe& recipe);

// Where and as who the worker meets its peers: rank 0 leaves its store's place, and the job's
// secret, in the rendezvous folder, readable by its user alone. WorldError if that does not come in
// time.
void find_peers(const Worker& worker, collective::GroupOptions& options);

// The group of all ranks. WorldError if peers do not come in time.
std::shared_ptr<collective::Group> open_group(const Worker& worker,
                                              const recipe::Parallel& parallel);

// From now on SIGINT and SIGTERM only set a flag, which stop_requested() reads.
void catch_stop_signals();
bool stop_requested();

}  // namespace tutti::train
