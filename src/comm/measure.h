// How long operations of a communicator take. All ranks call the same functions with the same
// arguments; all get the same answer. Sizes and bandwidths are those of nccl-tests:
//
//   operation       bytes S                    bus bandwidth / (S / seconds)
//   all_reduce      the buffer                 2 (n - 1) / n
//   reduce_scatter  the whole input            (n - 1) / n
//   all_gather      the whole output           (n - 1) / n
//   all_to_all      all that one rank sends    (n - 1) / n
//   broadcast       the buffer                 1
//   send_recv       one message                1; seconds are half a round trip of ranks 0 and 1
//   barrier         none                       none
//
// Elements are f32. The first call and one after the last are checked: every element of every rank,
// exactly; WorldError where one is wrong.
#pragma once
#include <array>
#include <cstddef>
#include <string_view>

#include "comm/communicator.h"

namespace tutti::comm {

constexpr std::array<std::string_view, 7> measured_operations = {
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all",
    "broadcast",  "send_recv",      "barrier"};

// Room for floats: each of measure_room(bytes, ranks) bytes.
struct MeasureBuffers {
  float *in, *out;
};
std::size_t measure_room(std::size_t bytes, int ranks);

struct Timing {
  double seconds;  // of a call: the median over the samples, each that of the slowest rank
  int calls;       // back to back in a sample, after a barrier
  int samples;
};

// About `budget` seconds of timed calls, at least 5 samples.
Timing measure(Communicator& communicator, std::string_view operation, std::size_t bytes,
               MeasureBuffers buffers, double budget);

// Bytes/s that all ranks together move when each works on memory of its own, counted as STREAM
// does (what is read and what is written; lines fetched only to be overwritten do not count).
struct MemoryRates {
  double copy;    // memcpy of `bytes`
  double triad;   // a = b + s c, `bytes` each
  double update;  // a = b = a + b, half of `bytes` each: the traffic of a rank in an all-reduce
  double limit() const;  // the highest
};
MemoryRates measure_memory(Communicator& communicator, std::size_t bytes, double budget);

// Bytes that the ranks of an all-reduce of `bytes` in shared memory must move together: each buffer
// is read once and written once, 2 n S.
double all_reduce_traffic(std::size_t bytes, int ranks);

}  // namespace tutti::comm
