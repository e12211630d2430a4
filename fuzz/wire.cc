// What a stranger sends to a rank that listens: the messages of a handshake, then records. Each is
// taken, or refused; nobody without the secret gets through.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/secure_channel.h"

namespace {

using namespace tutti::comm;

void shake(std::string_view bytes, bool connects) {
  Hello hello{};
  hello.size = 3;
  hello.to = connects ? 1 : 0;
  Handshake shake(hello, "a secret", connects);
  try {
    while (bytes.size() >= shake.wants()) {
      const std::size_t wants = shake.wants();
      shake.answer(bytes.substr(0, wants));
      bytes.remove_prefix(wants);
      TUTTI_ASSERT(shake.wants() > 0, "a stranger proved itself");
    }
  } catch (const Refused&) {
  }
}

void open(std::vector<std::byte> bytes) {
  Opener opener(sha256("a key"));
  std::span<std::byte> rest = bytes;
  try {
    while (rest.size() >= Record::head) {
      const std::size_t length = Opener::length(rest.data());
      if (length > rest.size()) return;
      opener.open(rest.first(length));
      rest = rest.subspan(length);
    }
  } catch (const Refused&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  shake(text, true);
  shake(text, false);
  const auto* raw = reinterpret_cast<const std::byte*>(bytes);
  open({raw, raw + size});
  return 0;
}
