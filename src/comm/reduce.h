// Elementwise reduction of several sources along a fixed program (reduction_tree.h). Pure.
#pragma once
#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace tutti::comm {

constexpr int max_reduction_depth = 32;

// "sum", "average".
const char* name_of(Reduce reduce);
// ConfigError for a reduction that elements of this type do not have.
void check_reduction(DType type, Reduce reduce);

// Runs `steps` (a push of sources[step], or ReductionPlan::add for combining the two topmost) over
// `count` elements and writes the result to every output. 16-bit floats are combined in f32 and
// rounded once, to nearest even. An average is the sum divided by the number of pushes. An output
// may be the same memory as a source, but not overlap one otherwise. A maximum or minimum with a
// NaN in it is NaN. No allocation.
void reduce_elements(std::span<const int> steps, std::span<const std::byte* const> sources,
                     std::span<std::byte* const> outputs, std::size_t count, DType type,
                     Reduce reduce);

}  // namespace tutti::comm
