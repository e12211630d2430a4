// For the tests: tensors whose every byte follows from (name, version), and what saves and checks
// them.
#pragma once
#include <doctest/doctest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"

namespace tutti::checkpoint {

using Shape = std::vector<std::int64_t>;
using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(const std::string& name, std::uint64_t version, std::size_t count) {
  const RandomStream stream(version, name);
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = std::byte(stream.words(i / 16)[i / 4 % 4] >> i % 4 * 8);
  return bytes;
}

// Replicated tensors of several dtypes, a scalar and an empty one among them.
class Sample {
 public:
  explicit Sample(std::uint64_t version, std::int64_t rows = 7) {
    add("model/w", DType::f32, {rows, 5}, version);
    add("model/b", DType::bf16, {13}, version);
    add("optimizer.exp_avg/w", DType::f32, {rows, 5}, version);
    add("scalar", DType::f64, {}, version);
    add("empty", DType::f32, {0, 3}, version);
    add("ids", DType::i64, {2, 2}, version);
  }
  Sample(const Sample&) = delete;

  const std::vector<TensorView>& views() const { return views_; }

  // "" if the checkpoint holds exactly these tensors and bytes, else what is wrong.
  std::string difference(const Loader& loader) const {
    std::vector<Loader::Expected> expected;
    for (const TensorView& view : views_) expected.push_back({view.name, view.dtype, view.shape});
    try {
      loader.require(expected);
      for (std::size_t i = 0; i < views_.size(); ++i) {
        Bytes read(bytes_[i].size());
        loader.read(views_[i].name, whole(views_[i].shape), read.data());
        if (read != bytes_[i]) return views_[i].name + " differs";
      }
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

 private:
  void add(const std::string& name, DType dtype, const Shape& shape, std::uint64_t version) {
    const auto count = static_cast<std::size_t>(element_count(whole(shape)));
    bytes_.push_back(bytes_of(name, version, count * size_of(dtype)));
    views_.push_back({name, dtype, shape, bytes_.back().data(), {}});
  }
  std::deque<Bytes> bytes_;
  std::vector<TensorView> views_;
};

// All ranks of a run in one process: each Saver has its own thread.
class Run {
 public:
  Run(const fs::path& folder, int world, const Keep& keep = {}, double deadline = 30) {
    for (int rank = 0; rank < world; ++rank)
      savers_.push_back(std::make_unique<Saver>(folder, rank, world, keep, deadline));
  }
  Saver& operator[](std::size_t rank) { return *savers_[rank]; }
  void save(std::int64_t step, const Sample& sample, const Json& state = {}) {
    for (auto& saver : savers_) saver->save(step, sample.views(), state);
    for (auto& saver : savers_) saver->wait();
  }

 private:
  std::vector<std::unique_ptr<Saver>> savers_;
};

// Names of what lies in a folder, sorted and joined by spaces.
inline std::string names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

// Numbers of one test, in order.
class Draw {
 public:
  explicit Draw(const std::string& name) : stream_(7, name) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(stream_.below(static_cast<std::uint64_t>(bound), at_++));
  }

 private:
  RandomStream stream_;
  std::uint64_t at_ = 0;
};

}  // namespace tutti::checkpoint
