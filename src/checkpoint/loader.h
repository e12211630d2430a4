// Reads checkpoints back, in any layout, and refuses damaged ones by name.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/stored_tensors.h"

namespace tutti::checkpoint {

class Loader {
 public:
  // Opens one step's folder and checks that the manifest's checksum holds, that the pieces are
  // there and make up each tensor, each element once, and, with `verify`, that their checksums
  // hold. WorldError names the file or tensor and what is wrong with it.
  explicit Loader(const fs::path& step_folder, bool verify = true);

  std::int64_t step() const { return manifest_.step; }
  const Manifest& manifest() const { return manifest_; }
  const Json& state() const { return manifest_.state; }

  // Copies the box of tensor `name` to `out` (row-major), put together from whatever pieces hold
  // it. WorldError if it is not stored or the pieces do not cover the box.
  void read(const std::string& name, const Box& box, std::byte* out) const;

  struct Expected {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  // ConfigError naming missing, unexpected and misshaped tensors (some of them, if many): a
  // checkpoint of another model.
  void require(const std::vector<Expected>& expected) const;

 private:
  fs::path path_;
  Manifest manifest_;
  std::map<std::string, StoredFile> files_;
  std::multimap<std::string, std::size_t> by_name_;  // entry indices
};

struct Latest {
  fs::path path;  // empty: there is none
  std::int64_t step = -1;
  std::vector<std::string> refused;  // newer ones: path and what is wrong with each
};
// The newest whole checkpoint among a run's.
Latest latest(const fs::path& folder);

// Texts of `tutti checkpoint list | show | verify`. verify's second is false if any is damaged.
std::string list_text(const fs::path& folder);
std::string show_text(const fs::path& step_folder);
std::pair<std::string, bool> verify_text(const fs::path& run_or_step_folder);

}  // namespace tutti::checkpoint
