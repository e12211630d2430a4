#include "comm/cost.h"

#include <algorithm>

#include "base/error.h"

namespace tutti::comm {

// With u = 1/seconds and v = bytes/seconds the relative error of a point is alpha u + beta v - 1:
// linear least squares in two unknowns. A bound that is crossed is where the best line lies.
CostLine fit_cost(std::span<const CostPoint> points) {
  double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
  for (const CostPoint point : points) {
    TUTTI_ASSERT(point.seconds > 0 && point.bytes >= 0, point.bytes, " bytes in ", point.seconds);
    const double u = 1 / point.seconds, v = point.bytes / point.seconds;
    uu += u * u, uv += u * v, vv += v * v, u1 += u, v1 += v;
  }
  if (points.empty()) return {};
  const CostLine constant{u1 / uu, 0};
  const double determinant = uu * vv - uv * uv;
  if (determinant <= 1e-12 * uu * vv) return constant;
  const CostLine line{(u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant};
  if (line.beta < 0) return constant;
  if (line.alpha < 0) return {0, v1 / vv};
  return line;
}

double traffic_factor(std::string_view operation, int ranks) {
  if (operation == "barrier") return 0;
  for (const std::string_view whole : {"broadcast", "reduce", "send", "recv", "send_recv"})
    if (operation == whole) return 1;
  const bool twice = operation == "all_reduce" || operation == "tree_all_reduce";
  return (twice ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

}  // namespace tutti::comm
