// A tokenized corpus from outside: either refused with WorldError, or readable to its end.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "data/corpus.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const tutti::TempFolder folder("tutti-fuzz");
  const tutti::fs::path file = folder.path() / "c.tutti";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  try {
    const auto corpus = tutti::data::Corpus::open(file, true);
    std::vector<std::int32_t> all(corpus.tokens());
    corpus.read(0, all);
    if (corpus.tokens() > 0) corpus.document_of(corpus.tokens() - 1);
  } catch (const tutti::WorldError&) {
  }
  return 0;
}
