// Saves without stopping the run. save() copies the rank's share into staging memory (the only
// stall) and returns; a thread writes it aside, makes it durable, and when all ranks' parts are,
// rank 0 gives the checkpoint its name. What has a name is whole (promise 8).
//
//   step-00000050.partial/rank-R.safetensors   each rank, durable
//   step-00000050.partial/rank-R.json          each rank, after it: "my part is whole"
//   step-00000050.partial/manifest.json        rank 0, once all parts are there
//   step-00000050/                             rank 0: one rename
//
// A kill at any instant leaves the earlier checkpoints as they were, and at most a .partial folder,
// which the next Saver of rank 0 removes.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format.h"

namespace tutti::checkpoint {

struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // global
  const std::byte* data = nullptr;  // row-major, of the box
  // None: all ranks have the whole tensor, and one of them writes it. Else this rank writes this
  // box; several of one name may be given. Of ranks with the same box only one may give it. Empty
  // boxes are left out, but for a tensor without elements, which some rank must give.
  std::optional<Box> box;
};

struct Keep {
  std::int64_t last = 2;         // newest checkpoints kept; 0: all
  std::int64_t every_steps = 0;  // multiples of it are kept for good; 0: none
};

// Steps to remove: a pure function of the steps that exist. The newest always stays.
std::vector<std::int64_t> superseded(const std::vector<std::int64_t>& steps, const Keep& keep);

// Which rank writes each of the replicated tensors of these sizes: the shares are about equal.
std::vector<int> share_out(const std::vector<std::size_t>& sizes, int world);

class Saver {
 public:
  // `deadline`: seconds that rank 0 waits for the others' parts.
  Saver(const fs::path& folder, int rank, int world, const Keep& keep, double deadline = 300);
  ~Saver();  // finishes what was started; errors are lost, so wait() first
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Every rank calls it with the same names of replicated tensors; the state is rank 0's. A step
  // may be saved again (the new one takes the place of the old in one instant) once wait() has
  // returned on all ranks. If the save before is still being written, waits for it. Returns the
  // seconds that the caller was held up. Rethrows what an earlier save met.
  double save(std::int64_t step, std::span<const TensorView> tensors, const Json& state);

  // Returns when nothing is being written any more. WorldError: full disk, no permission, a rank
  // whose part did not come; earlier checkpoints are untouched.
  void wait();

  // The newest step that this saver has named or handed in (rank > 0); -1 if none.
  std::int64_t last_saved() const;

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace tutti::checkpoint
