// The element types that tensors have on the wire and on disk, named as safetensors names them.
// Torch-free, so that comm, checkpoint and data share one vocabulary with the tensor modules.
#pragma once
#include <cstddef>
#include <string_view>

namespace tutti {

enum class DType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

// Bytes of one element.
constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    default:
      return 1;
  }
}

// "F32", "BF16", "I64", "BOOL": the spelling of the safetensors header.
constexpr std::string_view name_of(DType type) {
  constexpr std::string_view names[] = {"F64", "F32", "F16", "BF16", "I64",
                                        "I32", "I16", "I8",  "U8",   "BOOL"};
  return names[static_cast<std::size_t>(type)];
}

}  // namespace tutti
