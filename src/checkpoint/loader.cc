#include "checkpoint/loader.h"

#include <cstring>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace tutti::checkpoint {
namespace {

// Row-major strides of a box's own storage.
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& size) {
  std::vector<std::int64_t> strides(size.size(), 1);
  for (std::size_t d = size.size(); d-- > 1;) strides[d - 1] = strides[d] * size[d];
  return strides;
}

// Copies `common` from storage laid out as `from` to storage laid out as `to`, innermost rows
// whole.
void copy_box(const Box& common, const Box& from, const std::byte* source, const Box& to,
              std::byte* target, std::size_t element) {
  const std::size_t dims = common.size.size();
  if (element_count(common) == 0) return;
  if (dims == 0) {
    std::memcpy(target, source, element);
    return;
  }
  const auto from_strides = strides_of(from.size), to_strides = strides_of(to.size);
  const auto row = static_cast<std::size_t>(common.size[dims - 1]) * element;
  std::vector<std::int64_t> index(dims, 0);
  for (;;) {
    std::int64_t a = 0, b = 0;
    for (std::size_t d = 0; d < dims; ++d) {
      const std::int64_t at = common.offset[d] + index[d];
      a += (at - from.offset[d]) * from_strides[d];
      b += (at - to.offset[d]) * to_strides[d];
    }
    std::memcpy(target + static_cast<std::size_t>(b) * element,
                source + static_cast<std::size_t>(a) * element, row);
    std::size_t d = dims - 1;
    while (d-- > 0) {
      if (++index[d] < common.size[d]) break;
      index[d] = 0;
    }
    if (d == static_cast<std::size_t>(-1)) return;
  }
}

// What is wrong with the pieces of one tensor taken together; "" if they are all of it, once.
std::string gap_in(const std::vector<const Entry*>& pieces) {
  const Entry& first = *pieces.front();
  std::int64_t stored = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Entry& piece = *pieces[i];
    if (piece.shape != first.shape || piece.dtype != first.dtype)
      return "has pieces of different shapes or dtypes";
    for (std::size_t j = 0; j < i; ++j)
      if (element_count(intersect(piece.box, pieces[j]->box)) > 0)
        return str("is stored twice in ", to_text(intersect(piece.box, pieces[j]->box)));
    stored += element_count(piece.box);
  }
  return stored == element_count(whole(first.shape)) ? "" : "is not stored whole";
}

}  // namespace

Loader::Loader(const fs::path& step_folder, bool verify) : path_(step_folder) {
  const fs::path file = path_ / "manifest.json";
  try {
    manifest_ = manifest_from(parse_json(read_file(file), file.string()), file.string());
  } catch (const ConfigError& error) {  // Damage on disk is the world's, not the user's.
    throw WorldError(error.what());
  }
  std::set<std::pair<std::string, std::string>> keys;
  for (std::size_t i = 0; i < manifest_.entries.size(); ++i) {
    const Entry& entry = manifest_.entries[i];
    if (!keys.insert({entry.file, entry.stored_name()}).second)
      throw WorldError(str(file.string(), ": ", entry.name, ": the key ", entry.stored_name(),
                           " in ", entry.file, " is another piece's too"));
    by_name_.emplace(entry.name, i);
    if (!files_.contains(entry.file)) files_.emplace(entry.file, StoredFile(path_ / entry.file));
    const auto& stored = files_.at(entry.file).tensors();
    const auto found = stored.find(entry.stored_name());
    if (found == stored.end() || found->second.dtype != entry.dtype ||
        found->second.shape != entry.box.size)
      throw WorldError(
          str((path_ / entry.file).string(), ": ", entry.name, " is not what the manifest says"));
    if (verify && hash64(found->second.bytes) != entry.checksum)
      throw WorldError(str((path_ / entry.file).string(), ": the checksum of ", entry.name,
                           " does not hold: the file is damaged"));
  }
  std::map<std::string, std::vector<const Entry*>> pieces;
  for (const Entry& entry : manifest_.entries) pieces[entry.name].push_back(&entry);
  for (const auto& [name, all] : pieces)
    if (const std::string gap = gap_in(all); !gap.empty())
      throw WorldError(str(file.string(), ": ", name, " ", gap));
}

void Loader::read(const std::string& name, const Box& box, std::byte* out) const {
  std::int64_t covered = 0;
  const auto [first, last] = by_name_.equal_range(name);
  for (auto it = first; it != last; ++it) {
    const Entry& entry = manifest_.entries[it->second];
    const Box common = intersect(entry.box, box);
    const StoredTensor& stored = files_.at(entry.file).tensors().at(entry.stored_name());
    copy_box(common, entry.box, stored.bytes.data(), box, out, size_of(entry.dtype));
    covered += element_count(common);
  }
  if (covered < element_count(box) || first == last)
    throw WorldError(str(path_.string(), ": ", name, " ", to_text(box), " is not stored whole"));
}

void Loader::require(const std::vector<Expected>& expected) const {
  std::vector<Violation> wrong;
  std::set<std::string> names;
  const std::string where = path_.string();
  const auto text = [](const std::vector<std::int64_t>& shape) { return to_text(whole(shape)); };
  for (const Expected& tensor : expected) {
    names.insert(tensor.name);
    const auto found = by_name_.find(tensor.name);
    if (found == by_name_.end()) {
      wrong.push_back({tensor.name, where, "", "is missing from the checkpoint", ""});
      continue;
    }
    const Entry& entry = manifest_.entries[found->second];
    if (entry.shape != tensor.shape || entry.dtype != tensor.dtype)
      wrong.push_back({tensor.name, where, str(name_of(entry.dtype), " ", text(entry.shape)),
                       str("the model has ", name_of(tensor.dtype), " ", text(tensor.shape)), ""});
  }
  for (const Entry& entry : manifest_.entries)
    if (names.insert(entry.name).second)
      wrong.push_back({entry.name, where, "", "is in the checkpoint but not in the model", ""});
  if (wrong.empty()) return;
  constexpr std::size_t most = 8;
  if (wrong.size() > most) {
    const std::size_t left_out = wrong.size() - most + 1;
    wrong.resize(most - 1);
    wrong.push_back({str(left_out, " more tensors"), where, "", "do not fit either", ""});
  }
  wrong.back().remedy =
      "this is a checkpoint of another model: resume with the recipe that wrote it";
  throw ConfigError(wrong);
}

Latest latest(const fs::path& folder) {
  Latest found;
  const auto steps = steps_in(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const fs::path path = folder / step_folder_name(*step);
    try {
      const Loader loader(path);
      if (loader.step() != *step) throw WorldError("it says it is step " + str(loader.step()));
      found.path = path;
      found.step = *step;
      return found;
    } catch (const std::exception& error) {
      found.refused.push_back(str(path.string(), " is refused: ", error.what()));
    }
  }
  return found;
}

std::string list_text(const fs::path& folder) {
  std::string text;
  for (const std::int64_t step : steps_in(folder)) {
    const fs::path path = folder / step_folder_name(step);
    double bytes = 0;
    for (const auto& file : fs::directory_iterator(path))
      bytes += static_cast<double>(file.file_size());
    text += str("step ", step, "  ", human_bytes(bytes), "  ", path.string(), "\n");
  }
  return text.empty() ? "no checkpoint in " + folder.string() + "\n" : text;
}

std::string show_text(const fs::path& step_folder) {
  const Loader loader(step_folder, false);
  double elements = 0;
  std::string lines;
  for (const Entry& entry : loader.manifest().entries) {
    elements += static_cast<double>(element_count(entry.box));
    lines += str("  ", entry.name, "  ", name_of(entry.dtype), " ", to_text(whole(entry.shape)),
                 "  ", entry.file, " ", to_text(entry.box), "\n");
  }
  return str("step ", loader.step(), ", written by ", loader.manifest().world, " ranks, ",
             loader.manifest().entries.size(), " pieces, ", human_count(elements),
             " elements\nstate ", loader.state().dump(), "\n", lines);
}

std::pair<std::string, bool> verify_text(const fs::path& run_or_step_folder) {
  std::vector<fs::path> paths;
  if (fs::exists(run_or_step_folder / "manifest.json"))
    paths.push_back(run_or_step_folder);
  else
    for (const std::int64_t step : steps_in(run_or_step_folder))
      paths.push_back(run_or_step_folder / step_folder_name(step));
  if (paths.empty()) return {"no checkpoint in " + run_or_step_folder.string() + "\n", false};
  std::string text;
  bool good = true;
  for (const fs::path& path : paths) try {
      const Loader loader(path);
      text += str(path.string(), ": whole, ", loader.manifest().entries.size(), " pieces\n");
    } catch (const std::exception& error) {
      text += str(path.string(), ": damaged: ", error.what(), "\n");
      good = false;
    }
  return {text, good};
}

}  // namespace tutti::checkpoint
