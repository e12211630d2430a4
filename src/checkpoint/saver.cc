#include "checkpoint/saver.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/stored_tensors.h"

namespace tutti::checkpoint {

std::vector<std::int64_t> superseded(const std::vector<std::int64_t>& steps, const Keep& keep) {
  std::vector<std::int64_t> gone;
  if (keep.last == 0) return gone;
  const auto kept = static_cast<std::size_t>(keep.last);
  for (std::size_t i = 0; i + kept < steps.size(); ++i)
    if (keep.every_steps == 0 || steps[i] % keep.every_steps != 0) gone.push_back(steps[i]);
  return gone;
}

std::vector<int> share_out(const std::vector<std::size_t>& sizes, int world) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return sizes[a] != sizes[b] ? sizes[a] > sizes[b] : a < b;
  });
  std::vector<std::size_t> load(static_cast<std::size_t>(world), 0);
  std::vector<int> owner(sizes.size());
  for (std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owner[i] = static_cast<int>(least - load.begin());
    *least += sizes[i] + 1;
  }
  return owner;
}

namespace {

// What `rank` writes of these. Only what all ranks have is shared out: they must all come to the
// same shares.
std::vector<const TensorView*> share_of(std::span<const TensorView> tensors, int rank, int world) {
  std::vector<std::size_t> sizes;
  for (const TensorView& tensor : tensors)
    if (!tensor.box)
      sizes.push_back(static_cast<std::size_t>(element_count(whole(tensor.shape))) *
                      size_of(tensor.dtype));
  const std::vector<int> owners = share_out(sizes, world);
  auto owner = owners.begin();
  std::vector<const TensorView*> share;
  for (const TensorView& tensor : tensors) {
    // A tensor without elements has only empty pieces, and is stored as one of them.
    const bool piece =
        tensor.box && (element_count(*tensor.box) > 0 || element_count(whole(tensor.shape)) == 0);
    if (tensor.box ? piece : *owner++ == rank) share.push_back(&tensor);
  }
  return share;
}

// Names in the file: a tensor's first piece has its name, the others "name#1", "name#2", ...
// without those that are names themselves.
class Keys {
 public:
  explicit Keys(const std::vector<const TensorView*>& tensors) {
    for (const TensorView* tensor : tensors) names_.insert(tensor->name);
  }
  // "" for the name itself.
  std::string next(const std::string& name) {
    std::int64_t& pieces = pieces_[name];
    for (;;) {
      const std::int64_t at = pieces++;
      if (at == 0) return "";
      std::string key = str(name, "#", at);
      if (names_.insert(key).second) return key;
    }
  }

 private:
  std::set<std::string> names_;
  std::map<std::string, std::int64_t> pieces_;
};

}  // namespace

struct Saver::Work {
  fs::path folder;
  int rank, world;
  Keep keep;
  double deadline;

  std::thread thread;
  std::mutex mutex;
  std::condition_variable changed;
  bool busy = false, ending = false;
  std::exception_ptr error;
  std::int64_t last_saved = -1;

  // What the thread is to write; touched by it only while busy.
  std::int64_t step = 0;
  Json state;
  std::vector<Entry> entries;
  std::vector<std::size_t> offsets;
  std::vector<std::byte> staging;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return busy || ending; });
      if (!busy) return;
      lock.unlock();
      std::exception_ptr met;
      try {
        write();
      } catch (...) {
        met = std::current_exception();
        discard();
      }
      lock.lock();
      if (met)
        error = met;
      else
        last_saved = step;
      busy = false;
      changed.notify_all();
    }
  }

  // Only the last folder: a run whose folder was moved or removed must end, not grow another.
  void make_partial() const {
    std::error_code failed;
    fs::create_directory(partial(), failed);
    if (failed)
      throw WorldError(str("cannot make ", partial().string(), ": ", failed.message(),
                           fs::exists(folder) ? "" : "; the run's folder was moved or removed"));
  }

  fs::path partial() const { return folder / (step_folder_name(step) + ".partial"); }
  fs::path part_of(int r) const {
    return partial() / fs::path(shard_name(r)).replace_extension(".json");
  }

  void write() {
    make_partial();
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    Json part = Json::array();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Entry& entry = entries[i];
      const auto bytes = std::span<const std::byte>(staging).subspan(
          offsets[i], static_cast<std::size_t>(element_count(entry.box)) * size_of(entry.dtype));
      entry.checksum = hash64(bytes);
      tensors.push_back({entry.stored_name(), {entry.dtype, entry.box.size, bytes}});
      part.push_back(to_json(entry));
    }
    write_stored(partial() / shard_name(rank), tensors);
    write_file(part_of(rank), part.dump());
    if (rank == 0) name_it();
  }

  // After a failure: gives the space back, and leaves no part that a later try could take for its
  // own.
  void discard() {
    std::error_code ignored;
    if (rank == 0) fs::remove_all(partial(), ignored);
    fs::remove(part_of(rank), ignored);
    fs::remove(partial() / shard_name(rank), ignored);
  }

  void name_it() {
    Manifest manifest{step, world, state, {}};
    const double start = real_clock().now();
    for (int r = 0; r < world; ++r) {
      while (!fs::exists(part_of(r))) {
        if (real_clock().now() - start > deadline)
          throw WorldError(str("checkpoint of step ", step, ": rank ", r,
                               " did not write its part within ", deadline,
                               " s; the checkpoints before it are untouched"));
        real_clock().sleep(0.005);
      }
      for (const Json& json : parse_json(read_file(part_of(r)), part_of(r).string()))
        manifest.entries.push_back(entry_from(json, part_of(r).string()));
    }
    write_file(partial() / "manifest.json", to_json(manifest).dump(1));
    const fs::path final = folder / step_folder_name(step);
    if (!exchange(partial(), final)) {
      remove_folder(final);
      std::error_code failed;
      fs::rename(partial(), final, failed);
      if (failed) throw WorldError(str("cannot name ", final.string(), ": ", failed.message()));
    }
    make_durable(folder);
    remove_folder(partial());  // a checkpoint of the same step that was replaced
    auto steps = steps_in(folder);
    std::erase_if(steps, [&](std::int64_t other) { return other > step; });  // another run's future
    for (std::int64_t old : superseded(steps, keep)) remove_folder(folder / step_folder_name(old));
  }

  // Swaps two folders in one instant; false if one is absent or the file system cannot.
  static bool exchange(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
    return false;
#endif
  }

  // Loses its name first, so that a kill in between leaves no half checkpoint under a good name.
  void remove_folder(const fs::path& path) {
    if (!fs::exists(path)) return;
    fs::path doomed = path;
    doomed += ".removed";
    std::error_code ignored;
    fs::remove_all(doomed, ignored);
    fs::rename(path, doomed, ignored);
    fs::remove_all(doomed, ignored);
  }
};

Saver::Saver(const fs::path& folder, int rank, int world, const Keep& keep, double deadline)
    : work_(std::make_unique<Work>()) {
  work_->folder = folder;
  work_->rank = rank;
  work_->world = world;
  work_->keep = keep;
  work_->deadline = deadline;
  make_folders(folder);
  if (rank == 0)
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".partial" && extension != ".removed") continue;
      log_info(
          str("removing ", entry.path().string(), ", left half written by a run that was killed"));
      std::error_code ignored;
      fs::remove_all(entry.path(), ignored);
    }
  work_->thread = std::thread([work = work_.get()] { work->run(); });
}

Saver::~Saver() {
  {
    std::unique_lock lock(work_->mutex);
    work_->changed.wait(lock, [&] { return !work_->busy; });
    work_->ending = true;
  }
  work_->changed.notify_all();
  work_->thread.join();
}

double Saver::save(std::int64_t step, std::span<const TensorView> tensors, const Json& state) {
  const double start = real_clock().now();
  wait();
  Work& work = *work_;
  const std::vector<const TensorView*> mine = share_of(tensors, work.rank, work.world);
  Keys keys(mine);
  work.entries.clear();
  work.offsets.clear();
  std::size_t total = 0;
  for (const TensorView* tensor : mine) {
    const Box box = tensor->box ? *tensor->box : whole(tensor->shape);
    work.entries.push_back({tensor->name, tensor->dtype, tensor->shape, box, shard_name(work.rank),
                            0, keys.next(tensor->name)});
    work.offsets.push_back(total);
    total += static_cast<std::size_t>(element_count(box)) * size_of(tensor->dtype);
  }
  work.offsets.push_back(total);
  if (work.staging.size() < total) work.staging.resize(total);
  for (std::size_t i = 0; i < mine.size(); ++i)
    std::copy_n(mine[i]->data, work.offsets[i + 1] - work.offsets[i],
                work.staging.data() + work.offsets[i]);
  work.step = step;
  work.state = state;
  {
    std::lock_guard lock(work.mutex);
    work.busy = true;
  }
  work.changed.notify_all();
  return real_clock().now() - start;
}

void Saver::wait() {
  std::unique_lock lock(work_->mutex);
  work_->changed.wait(lock, [&] { return !work_->busy; });
  if (work_->error) std::rethrow_exception(std::exchange(work_->error, nullptr));
}

std::int64_t Saver::last_saved() const {
  std::lock_guard lock(work_->mutex);
  return work_->last_saved;
}

}  // namespace tutti::checkpoint
