// `tutti tokenizer encode|decode --lines`: many texts through one process.
#pragma once
#include <iosfwd>

#include "data/tokenizer.h"

namespace tutti::data {

// One JSON string a line in, one JSON array of ids a line out. ConfigError names a wrong line.
void encode_lines(const Tokenizer& tokenizer, std::istream& in, std::ostream& out);
// One JSON array of ids a line in, one JSON string a line out.
void decode_lines(const Tokenizer& tokenizer, std::istream& in, std::ostream& out);

}  // namespace tutti::data
