// A tokenizer.json of BPE kind. Same ids as the `tokenizers` library's encode(add_special_tokens=
// False). Truncation and padding in the file are not applied.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace tutti::data {

// `json`: the file's content; `name` is for messages; `eos`: the end-of-document piece if the
// caller knows it (tokenizer_config.json), else "": the usual names are tried.
std::unique_ptr<Tokenizer> parse_hugging_face_tokenizer(std::string_view json,
                                                        const std::string& name,
                                                        const std::string& eos = "");

}  // namespace tutti::data
