// What happens on one rank, as one JSON object a line (docs/formats/events.md). Never holds
// training up: lines go to a bounded queue that a thread writes; what does not fit is dropped,
// counted, said. A disk that fails is said once; training goes on without events. Calls come from
// one thread.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/fs.h"
#include "base/json.h"

namespace tutti::events {

class Writer {
 public:
  // Appends to `file`; at most `capacity` bytes wait to be written. WorldError if it cannot be
  // opened.
  Writer(const fs::path& file, int rank, std::size_t capacity = 8 << 20);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // {"kind":"scalars","step":5,"rank":0,"time":T,"loss":2.1,...}; what is not finite becomes null.
  void scalars(std::int64_t step, std::span<const std::pair<const char*, double>> values);
  // {"kind":"span","name":"checkpoint","step":5,...,"start":T,"seconds":0.2}
  void span(const char* name, std::int64_t step, double start, double seconds);
  // {"kind":"instant","name":"start","step":0,...,"data":{...}}
  void instant(const std::string& name, std::int64_t step, const Json& data);

  void flush();                  // returns when all lines so far are in the file
  void stop();                   // flush, then the thread ends; later calls do nothing
  std::int64_t dropped() const;  // records so far; stop() says it, and records it as "dropped"

 private:
  struct Queue;
  std::unique_ptr<Queue> queue_;
  int rank_;
  std::int64_t last_step_ = 0;
};

}  // namespace tutti::events
