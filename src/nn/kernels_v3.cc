// The kernels for processors with AVX2 and FMA.
#include <cstddef>
#include <cstdint>

#include "nn/kernels.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed within this file only
#define TUTTI_LEVEL v3
#define TUTTI_LEVEL_NAME "x86-64-v3"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v3"), min_vector_width(256))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3", "prefer-vector-width=256")
#endif
#include "nn/kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
