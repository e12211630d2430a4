// What an operation costs, as a line: seconds = alpha + beta x bytes (Hockney's model). Pure.
#pragma once
#include <span>
#include <string_view>

namespace tutti::comm {

struct CostPoint {
  double bytes, seconds;
};

struct CostLine {
  double alpha = 0;  // seconds of an operation on nothing
  double beta = 0;   // seconds a further byte
  double seconds(double bytes) const { return alpha + beta * bytes; }
};

// The line with the least sum of squared relative errors, so that a microsecond at a KiB weighs as
// much as a tenth of a second at 100 MiB; neither number is below 0. Seconds must be above 0. One
// point, or points of one size, give their best constant; none give zeros.
CostLine fit_cost(std::span<const CostPoint> points);

// What one rank sends of an operation, over the bytes of the largest buffer, by the bounds of Chan
// et al. ("Collective communication: theory, practice, and experience", 2007); nccl-tests calls the
// bandwidth by it the bus's. Of measured and of recorded operations, by name.
double traffic_factor(std::string_view operation, int ranks);

}  // namespace tutti::comm
