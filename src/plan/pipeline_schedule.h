// Pipeline schedules as data: for each rank the list of passes that it runs, in order. Who executes
// them (parallel) knows nothing of how they came to be; here they are made, proved free of deadlock
// and timed. Everything is a pure function.
//
//   gpipe        all forwards, then all backwards (Huang et al. 2019)
//   1f1b         one forward, one backward once the pipe is full (Narayanan et al. 2019): at most
//                `ranks` activations a rank, however many micro-batches
//   interleaved  1f1b over `chunks` stages a rank, dealt round robin (Narayanan et al. 2021,
//                section 2.2): the bubble shrinks by `chunks`
//   zb-h1        1f1b whose backward is split; weight gradients fill the holes, the memory of 1f1b
//                (Qi et al., "Zero bubble pipeline parallelism", ICLR 2024, section 3)
//   zb-v         two stages a rank, placed as a V: no bubble if all passes take equally long, the
//                memory of 1f1b (Qi et al., "Pipeline parallelism with controllable memory", 2024)
//   dualpipe-v   the V with a forward and a backward of different micro-batches side by side, so
//                that each hides the other's communication (DeepSeek-AI 2024, halved)
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"

namespace tutti::plan {

enum class Pass {
  forward,
  backward,         // both of the following at once
  input_gradient,   // what the stage before waits for
  weight_gradient,  // any time after it
};
const char* name_of(Pass pass);

struct Action {
  Pass pass = Pass::forward;
  int stage = 0;  // of all `ranks * chunks`, in the model's order
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};

struct PipelineSchedule {
  std::string kind;
  int ranks = 1, chunks = 1, micro_batches = 1;
  std::vector<int> rank_of;                 // of each stage
  std::vector<std::vector<Action>> orders;  // of each rank

  int stages() const { return ranks * chunks; }
};

const std::vector<std::string>& pipeline_kinds();

// `chunks` stages a rank: 1 for gpipe, 1f1b and zb-h1, 2 for zb-v and dualpipe-v, at least 2 for
// interleaved, whose micro_batches must be a multiple of `ranks`; dualpipe-v needs two
// micro-batches a rank. ConfigError naming all that is wrong and the nearest legal values.
PipelineSchedule make_pipeline_schedule(const std::string& kind, int ranks, int chunks,
                                        int micro_batches);
// What it would refuse: fields pipeline.schedule, .ranks, .chunks and .micro_batches.
std::vector<Violation> pipeline_violations(const std::string& kind, int ranks, int chunks,
                                           int micro_batches);

// What one pass of one stage takes (any unit of time), and a tensor's way to another rank.
struct PassCosts {
  double forward = 1, input_gradient = 1, weight_gradient = 1, transfer = 0;
};

struct Timed {
  Action action;
  double start = 0, end = 0;
};

struct PipelineTiming {
  std::vector<std::vector<Timed>> ranks;
  double span = 0;  // the longest of any rank, first start to last end
  // 1 - work / span of the busiest rank: Qi et al., section 5.3.
  double bubble = 0;
  // Per rank: stage activations alive at once, from a forward's start to the end of its weight
  // gradient; one of a chunk counts 1.
  std::vector<int> peak_activations;
};

// Runs the orders with each pass as early as order and data allow. ConfigError names the waiting
// passes if they wait for each other for ever, or one is missing or doubled. A schedule that comes
// through has no deadlock: what waits for what does not depend on the times.
PipelineTiming simulate(const PipelineSchedule& schedule, const PassCosts& costs);

}  // namespace tutti::plan
