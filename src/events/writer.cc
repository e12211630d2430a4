#include "events/writer.h"

#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace tutti::events {
namespace {

void append_number(std::string& line, double value) {
  char text[40];
  if (std::isfinite(value)) {
    std::snprintf(text, sizeof text, "%.17g", value);
    line += text;
  } else {
    line += "null";
  }
}

// As a process leaves a file that was killed while it wrote.
bool ends_in_a_torn_line(const fs::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() <= 0) return false;
  in.seekg(-1, std::ios::end);
  return in.get() != '\n';
}

std::string head(const char* kind, std::int64_t step, int rank) {
  char text[128];
  std::snprintf(text, sizeof text, "{\"kind\":\"%s\",\"step\":%lld,\"rank\":%d,\"time\":%.6f", kind,
                static_cast<long long>(step), rank, wall_seconds());
  return text;
}

}  // namespace

struct Writer::Queue {
  std::FILE* file = nullptr;
  std::string path;
  std::size_t capacity = 0;  // bytes that may wait
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;
  std::int64_t dropped = 0;
  bool ending = false, writing = false, failed = false;
  std::thread thread;

  void push(std::string line) {
    line += "}\n";
    {
      std::lock_guard lock(mutex);
      if (ending) return;
      if (waiting.size() + line.size() > capacity) {
        ++dropped;
        return;
      }
      waiting += line;
    }
    changed.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !waiting.empty() || ending; });
      if (waiting.empty()) return;
      std::string lines;
      std::swap(lines, waiting);
      writing = true;
      lock.unlock();
      const bool good = std::fwrite(lines.data(), 1, lines.size(), file) == lines.size() &&
                        std::fflush(file) == 0;
      const std::string why = good ? "" : errno_text();
      lock.lock();
      writing = false;
      if (!good && !failed) {
        failed = true;
        log_warning(
            str("cannot write events to ", path, ": ", why, "; training goes on without them"));
      }
      changed.notify_all();
    }
  }
};

Writer::Writer(const fs::path& file, int rank, std::size_t capacity)
    : queue_(std::make_unique<Queue>()), rank_(rank) {
  queue_->capacity = capacity;
  const bool torn = ends_in_a_torn_line(file);
  queue_->path = file.string();
  queue_->file = std::fopen(file.c_str(), "ae");
  if (!queue_->file) throw WorldError(str("cannot write ", file.string(), ": ", errno_text()));
  if (torn) queue_->waiting = "\n";  // Else our first record would be lost in that line.
  queue_->thread = std::thread([queue = queue_.get()] { queue->run(); });
}

Writer::~Writer() {
  stop();
  std::fclose(queue_->file);
}

void Writer::scalars(std::int64_t step, std::span<const std::pair<const char*, double>> values) {
  last_step_ = step;
  std::string line = head("scalars", step, rank_);
  line.reserve(line.size() + 48 * values.size());
  for (const auto& [name, value] : values) {
    line += ",\"";
    line += name;
    line += "\":";
    append_number(line, value);
  }
  queue_->push(std::move(line));
}

void Writer::span(const char* name, std::int64_t step, double start, double seconds) {
  std::string line = head("span", step, rank_);
  line += str(",\"name\":\"", name, "\",\"start\":");
  append_number(line, start);
  line += ",\"seconds\":";
  append_number(line, seconds);
  queue_->push(std::move(line));
}

void Writer::instant(const std::string& name, std::int64_t step, const Json& data) {
  std::string line = head("instant", step, rank_);
  line += str(",\"name\":", Json(name).dump(),
              ",\"data\":", data.dump(-1, ' ', false, Json::error_handler_t::replace));
  queue_->push(std::move(line));
}

std::int64_t Writer::dropped() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->dropped;
}

void Writer::flush() {
  std::unique_lock lock(queue_->mutex);
  queue_->changed.wait(lock, [&] { return queue_->waiting.empty() && !queue_->writing; });
}

void Writer::stop() {
  if (!queue_->thread.joinable()) return;
  flush();
  if (const std::int64_t lost = dropped(); lost > 0) {
    log_warning(
        str("rank ", rank_, ": ", lost, " event records were dropped: the disk was too slow"));
    instant("dropped", last_step_, {{"records", lost}});
  }
  {
    std::lock_guard lock(queue_->mutex);
    queue_->ending = true;
  }
  queue_->changed.notify_all();
  queue_->thread.join();
}

}  // namespace tutti::events
