// A checkpoint's manifest from outside: either refused with ConfigError, or the same once written
// and read again. Its checksum is put right first, or nothing would come past it.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tutti;
  using namespace tutti::checkpoint;
  Manifest manifest;
  try {
    Json json = parse_json({reinterpret_cast<const char*>(bytes), size}, "fuzz.json");
    if (json.is_object()) {
      json.erase("checksum");
      json["checksum"] = hex64(hash64(json.dump()));
    }
    manifest = manifest_from(json, "fuzz.json");
  } catch (const ConfigError&) {
    return 0;
  }
  for (const Entry& entry : manifest.entries)
    TUTTI_ASSERT(contains(whole(entry.shape), entry.box), entry.name);
  const Json written = to_json(manifest);
  TUTTI_ASSERT(to_json(manifest_from(written, "again.json")) == written, written.dump());
  return 0;
}
