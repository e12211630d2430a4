// Files, with errors that name the path and the cause. All failures throw WorldError unless said.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

namespace fs = std::filesystem;

// Flushes std::cout. WorldError if what was written did not arrive (a full disk); a reader that
// closed its pipe early is no error.
void check_standard_output();

std::string read_file(const fs::path& path);

// Written beside, made durable (fsync of file and folder), then renamed over `path`: readers see
// the old content or the new, whole, also after a power cut.
void write_file(const fs::path& path, std::string_view content);

// The same, readable by its user alone.
void write_private_file(const fs::path& path, std::string_view content);

// The same from parts, so that large content need not be copied together first.
void write_file(const fs::path& path, std::span<const std::string_view> parts);

void make_folders(const fs::path& path);

// fsync of a file or a folder.
void make_durable(const fs::path& path);

std::uint64_t free_bytes(const fs::path& path);

// A fresh folder under $TMPDIR, removed with everything in it by the destructor.
class TempFolder {
 public:
  explicit TempFolder(std::string_view prefix = "tutti");
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A read-only file mapping. Movable; an empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tutti
