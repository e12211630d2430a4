// The kernels for every processor.
#include <cstddef>
#include <cstdint>

#include "nn/kernels.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed within this file only
#define TUTTI_LEVEL base
#define TUTTI_LEVEL_NAME "x86-64"
#include "nn/kernels.inc"
