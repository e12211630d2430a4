#include "events/tensorboard.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

namespace tutti::events {
namespace {

constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}();

std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

// Protobuf wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
std::string tag(int field, int wire) {
  return varint(static_cast<std::uint64_t>(field << 3 | wire));
}
std::string bytes_field(int field, std::string_view value) {
  return tag(field, 2) + varint(value.size()) + std::string(value);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

TensorBoard::TensorBoard(const fs::path& folder, std::int64_t after) {
  make_folders(folder);
  const fs::path path = folder / str("events.out.tfevents.", static_cast<long long>(wall_seconds()),
                                     ".tutti.", ::getpid());
  file_ = std::fopen(path.c_str(), "wbe");
  if (!file_) throw WorldError(str("cannot write ", path.string(), ": ", errno_text()));
  frame(tag(1, 1) + raw(wall_seconds()) + bytes_field(3, "brain.Event:2"));
  if (after > 0)  // Event: session_log = 7 {status = 1 (1: START)}.
    frame(tag(1, 1) + raw(wall_seconds()) + tag(2, 0) +
          varint(static_cast<std::uint64_t>(after + 1)) + bytes_field(7, tag(1, 0) + varint(1)));
}

TensorBoard::~TensorBoard() { std::fclose(file_); }

void TensorBoard::scalar(std::string_view name, std::int64_t step, double value) {
  // Summary.Value: tag = 1, simple_value = 2.
  event(step, bytes_field(1, bytes_field(1, name) + tag(2, 5) + raw(static_cast<float>(value))));
}

void TensorBoard::text(std::string_view name, std::int64_t step, std::string_view text) {
  // TensorProto: dtype = 1 (7: string), tensor_shape = 2 {dim = 2 {size = 1}}, string_val = 8;
  // Summary.Value: tensor = 8, metadata = 9 {plugin_data = 1 {plugin_name = 1}}.
  const std::string shape = bytes_field(2, tag(1, 0) + varint(1));
  const std::string tensor = tag(1, 0) + varint(7) + bytes_field(2, shape) + bytes_field(8, text);
  const std::string metadata = bytes_field(1, bytes_field(1, "text"));
  event(step,
        bytes_field(1, bytes_field(1, name) + bytes_field(8, tensor) + bytes_field(9, metadata)));
}

void TensorBoard::event(std::int64_t step, const std::string& summary) {
  frame(tag(1, 1) + raw(wall_seconds()) + tag(2, 0) + varint(static_cast<std::uint64_t>(step)) +
        bytes_field(5, summary));
}

void TensorBoard::frame(const std::string& payload) {
  const std::string length = raw(static_cast<std::uint64_t>(payload.size()));
  const std::string record = length + raw(masked(length)) + payload + raw(masked(payload));
  std::fwrite(record.data(), 1, record.size(), file_);
  std::fflush(file_);
}

}  // namespace tutti::events
