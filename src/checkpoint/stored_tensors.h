// Tensors in safetensors files, as the bytes they are: what checkpoints and Hugging Face folders
// are made of (8 bytes of header length, a JSON header, the data).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/fs.h"

namespace tutti::checkpoint {

struct StoredTensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // row-major; on reading, into the file's mapping
};

// A mapped file. Throws WorldError naming the path for a file that is cut or contradicts itself.
class StoredFile {
 public:
  explicit StoredFile(const fs::path& path);
  const fs::path& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

 private:
  fs::path path_;
  MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

// Replaces `path` whole or not at all; data begin at a multiple of 64 bytes.
void write_stored(const fs::path& path,
                  const std::vector<std::pair<std::string, StoredTensor>>& tensors);

}  // namespace tutti::checkpoint
