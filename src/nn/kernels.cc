#include "nn/kernels.h"

namespace tutti::nn {

namespace base {
extern const Kernels table;
}
#if defined(__x86_64__)
namespace v3 {
extern const Kernels table;
}
namespace v4 {
extern const Kernels table;
}
#endif

namespace {

struct Levels {
  const Kernels* table[3] = {&base::table, nullptr, nullptr};
  int count = 1;
};

Levels find() {
  Levels levels;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (avx2) levels.table[levels.count++] = &v3::table;
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512vl"))
    levels.table[levels.count++] = &v4::table;
#endif
  return levels;
}

const Levels& levels() {
  static const Levels found = find();
  return found;
}

}  // namespace

const Kernels& kernels() { return *levels().table[levels().count - 1]; }

const Kernels* const* kernel_levels(int* count) {
  *count = levels().count;
  return levels().table;
}

}  // namespace tutti::nn
