// Boards by which the ranks of a TCP group meet in tests and benchmarks.
#pragma once
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/socket_group.h"

namespace tutti::testing {

// Of threads.
class MemoryBoard : public comm::Board {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    texts_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, double timeout) override {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> limit(timeout);
    if (!changed_.wait_for(lock, limit, [&] { return texts_.contains(key); }))
      throw WorldError(str("no '", key, "'"));
    return texts_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> texts_;
};

// Of processes: a file a key.
class FolderBoard : public comm::Board {
 public:
  explicit FolderBoard(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    std::ofstream(path_of(key + " aside")) << value;
    std::filesystem::rename(path_of(key + " aside"), path_of(key));
  }
  std::string get(const std::string& key, double timeout) override {
    const double until = real_clock().now() + timeout;
    while (!std::filesystem::exists(path_of(key))) {
      if (real_clock().now() > until) throw WorldError(str("no '", key, "'"));
      real_clock().sleep(0.001);
    }
    std::string text;
    std::ifstream file(path_of(key));
    std::getline(file, text);
    return text;
  }

 private:
  std::filesystem::path path_of(const std::string& key) const {
    return folder_ / hex64(hash64(key));
  }
  std::filesystem::path folder_;
};

}  // namespace tutti::testing
