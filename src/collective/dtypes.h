// Between libtorch's element types and ours.
#pragma once
#include <c10/core/ScalarType.h>

#include "base/dtype.h"
#include "base/error.h"

namespace tutti::collective {

// ConfigError for a type that no communicator carries.
inline DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::f64;
    case at::kFloat:
      return DType::f32;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kLong:
      return DType::i64;
    case at::kInt:
      return DType::i32;
    case at::kShort:
      return DType::i16;
    case at::kChar:
      return DType::i8;
    case at::kByte:
      return DType::u8;
    case at::kBool:
      return DType::boolean;
    default:
      throw ConfigError(str("no collective carries tensors of type ", c10::toString(type)));
  }
}

inline at::ScalarType to_scalar_type(DType type) {
  constexpr at::ScalarType types[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                      at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};
  return types[static_cast<std::size_t>(type)];
}

}  // namespace tutti::collective
