// The memory that the ranks of a memory group share, and how they wait in it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/call.h"
#include "comm/memory_group.h"

namespace tutti::comm {

// A call as a rank posts it for its peers. Two alternate, so that a peer can read the last one
// while the next is written. Short calls are as fast as few lines go between cores: what all calls
// have is one line, and of the rest only what a call uses is written and read.
struct PostedCall : CallHead {
  std::int32_t in_place;  // peers may use location[] and out
};
struct alignas(64) Posted : PostedCall {
  std::uint64_t location[max_memory_ranks];  // of what it brings, relative to the segment
  std::uint64_t out;
  std::uint64_t parts[max_memory_ranks];  // counts of the parts (all_to_all: of those it sends)
};

struct alignas(64) RankBlock {
  std::atomic<std::uint32_t> phase;    // how many times this rank has said "ready"
  std::atomic<std::uint32_t> waiters;  // who sleep on a counter of this block
  std::atomic<std::int32_t> process;
  alignas(64) std::atomic<std::uint32_t> sent[max_memory_ranks];      // chunks to each rank
  alignas(64) std::atomic<std::uint32_t> received[max_memory_ranks];  // chunks from each rank
  alignas(64) Posted posted[2];
};

struct alignas(64) GroupBlock {
  std::atomic<std::uint32_t> aborted;  // 0 no, 1 the reason is being written, 2 yes
  char reason[1020];
};

// Zeroed memory laid out for `size` ranks.
class Segment {
 public:
  static constexpr std::size_t message_chunk = 128 << 10;

  // Anonymous memory for threads, or the memory of descriptor `fd` (taken over).
  Segment(int size, const MemoryOptions& options, int fd);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  static std::size_t bytes_for(int size, const MemoryOptions& options);

  GroupBlock& group() { return *reinterpret_cast<GroupBlock*>(base_); }
  RankBlock& rank(int r) { return reinterpret_cast<RankBlock*>(base_ + sizeof(GroupBlock))[r]; }
  std::byte* eager(int r, std::uint64_t parity) const;
  std::byte* stage(int r) const;
  std::byte* message(int from, int to, std::uint32_t index) const;
  // Page-aligned memory of rank r, or nullptr when none is left. One caller a rank.
  std::byte* allocate(int r, std::size_t bytes);

  bool holds(const void* data, std::size_t bytes) const;
  std::uint64_t to_location(const void* data) const {
    return reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(base_);
  }
  std::byte* from_location(std::uint64_t location) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(base_) + location);
  }

 private:
  int size_;
  MemoryOptions options_;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
  std::size_t used_[max_memory_ranks] = {};  // of the arenas, in this process
};

// Creates the segment as rank 0 or receives it from rank 0.
std::shared_ptr<Segment> meet(const std::string& name, int rank, int size,
                              const MemoryOptions& options);

// Sets `counter`, in `block`, and wakes who sleep on it.
void publish(RankBlock& block, std::atomic<std::uint32_t>& counter, std::uint32_t value);
// Sleeps while `counter` is `seen`, at most `seconds`; may return early.
void sleep_on(RankBlock& block, std::atomic<std::uint32_t>& counter, std::uint32_t seen,
              double seconds);
// Wakes all who sleep anywhere in the segment.
void wake_all(Segment& segment, int size);

// Whether a process has ended, also when nobody has collected it yet.
class ProcessWatch {
 public:
  explicit ProcessWatch(int process);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept : process_(other.process_), fd_(other.fd_) {
    other.fd_ = -1;
  }
  ProcessWatch& operator=(ProcessWatch&&) = delete;
  bool ended() const;

 private:
  int process_, fd_;
};

}  // namespace tutti::comm
