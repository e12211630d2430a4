// What a rank did last, in a file that outlives its process however it ends: each operation of its
// groups with the moments at which it was asked for, started and ended, and spans of its own work.
// Memory shared with the file holds a ring of the newest entries; nothing is flushed, no thread is
// needed, and an entry costs less than a microsecond. docs/formats/flight.md tells the bytes.
//
// Read by `tutti doctor run` (who waits for whom) and `tutti trace` (what took how long).
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <source_location>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/fs.h"

namespace tutti::comm {

// One entry, as it lies in the file. Times are seconds of the machine's monotonic clock; 0: not
// yet.
struct FlightEntry {
  std::uint64_t order = 0;     // 1, 2, ... over the rank's entries; 0: none, or being written
  std::uint64_t sequence = 0;  // from 1: collectives of a group; messages of a group, peer and
                               // direction. 0: a span
  std::int64_t bytes = 0;      // of the largest buffer that this rank brings or gets
  double asked = 0, started = 0, ended = 0;
  std::int32_t group = -1;  // of the file's groups; -1: a span
  std::int32_t peer = -1;   // of a message, in its group; root of a broadcast
  std::uint8_t type = 0;    // DType
  std::uint8_t failed = 0;
  std::uint8_t message = 0;
  std::array<std::uint8_t, 5> unused = {};
  std::array<char, 24> operation = {};  // "all_reduce"; of a span its name. Ends with a zero
  std::array<char, 40> site = {};       // who asked: "stage_gradients.cc:88"

  bool span() const { return group < 0; }
};
static_assert(sizeof(FlightEntry) == 128);

// A group that the rank is in.
struct FlightGroup {
  std::uint64_t key = 0;  // alike on its members, unlike that of other groups
  std::int32_t rank = 0, size = 0;
  std::array<char, 112> name = {};
};
static_assert(sizeof(FlightGroup) == 128);

// The file: this, then room for `most_groups` groups and `capacity` entries; entry n lies at n %
// capacity.
struct FlightHead {
  static constexpr std::uint32_t most_groups = 256;
  static constexpr std::uint64_t capacity = 1 << 14;  // 2 MiB

  std::array<char, 8> magic = {};  // "tuttifl1"
  std::int32_t rank = 0, world = 0, process = 0;
  std::int32_t closed = 0;   // 1: it ended in order; 2: with an error
  std::uint64_t birth = 0;   // of the process, in clock ticks since its host's boot
  double wall = 0;           // seconds since 1970 less those of the monotonic clock
  std::uint64_t newest = 0;  // order of the newest entry
  std::uint64_t groups = 0;
  std::array<char, 72> host = {};
};
static_assert(sizeof(FlightHead) == 128);

// "stage_gradients.cc:88".
std::string site_text(const std::source_location& site);

class FlightRecorder {
 public:
  // Makes `file` anew. WorldError if it cannot be made.
  FlightRecorder(const fs::path& file, int rank, int world);
  ~FlightRecorder();  // the file says from then on that the rank ended, and whether by an error
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // All of these from any thread.
  // Its number; -1 if the table is full: then its operations are not recorded.
  int add_group(const std::string& name, std::uint64_t key, int rank, int size);
  struct Asked {
    int group = -1;
    const char* operation = "";
    DType type = DType::u8;
    std::int64_t bytes = 0;
    std::uint64_t sequence = 0;
    int peer = -1;
    bool message = false;
    std::source_location site = {};
  };
  // The entry's order, by which it is meant afterwards; what the ring has lost is left alone.
  std::uint64_t ask(const Asked& asked);
  void start(std::uint64_t order);
  void end(std::uint64_t order, bool failed);
  // Times of real_clock().
  void span(const char* name, double start, double end);

 private:
  struct File;
  FlightEntry& claim(std::uint64_t& order);
  FlightEntry* find(std::uint64_t order);

  File* file_ = nullptr;
  std::mutex mutex_;  // of the group table
};

// What a file holds.
struct FlightLog {
  enum class Process { runs, stopped, ended, closed, failed, elsewhere };

  int rank = 0, world = 0;
  int process = 0;  // its number on `host`
  std::string host;
  Process state = Process::ended;  // closed, failed: it ended in order,
                                   // with an error; elsewhere: not to be seen from here
  double now = 0;   // of its clock, if its machine is this one; else when it wrote last
  double wall = 0;  // add it to a time to have seconds since 1970
  std::vector<FlightGroup> groups;
  std::vector<FlightEntry> entries;  // whole ones, in order
};

// WorldError if it cannot be read or is none.
FlightLog read_flight(const fs::path& file);

}  // namespace tutti::comm
