// TensorBoard event files: TFRecord frames (length, masked CRC-32C, payload, masked CRC-32C) around
// tensorflow.Event messages, whose few fields are encoded by hand.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/fs.h"

namespace tutti::events {

class TensorBoard {
 public:
  // A new file. WorldError if it cannot be made. Tells TensorBoard to forget what earlier files say
  // of steps above `after`, if that is above 0: a resumed run does them again.
  explicit TensorBoard(const fs::path& folder, std::int64_t after = 0);
  ~TensorBoard();
  TensorBoard(const TensorBoard&) = delete;
  TensorBoard& operator=(const TensorBoard&) = delete;
  void scalar(std::string_view name, std::int64_t step, double value);
  void text(std::string_view name, std::int64_t step, std::string_view text);

 private:
  void event(std::int64_t step, const std::string& summary);
  void frame(const std::string& payload);
  std::FILE* file_;
};

// Castagnoli's CRC, bitwise-reflected, as RFC 3720 uses it.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace tutti::events
