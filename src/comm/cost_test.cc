#include "comm/cost.h"

#include <doctest/doctest.h>

#include <vector>

using namespace tutti::comm;

namespace {

std::vector<CostPoint> on_line(double alpha, double beta) {
  std::vector<CostPoint> points;
  for (double bytes = 1024; bytes <= 64 << 20; bytes *= 4)
    points.push_back({bytes, alpha + beta * bytes});
  return points;
}

double error_of(const CostLine& line, const std::vector<CostPoint>& points) {
  double sum = 0;
  for (const CostPoint point : points) {
    const double relative = line.seconds(point.bytes) / point.seconds - 1;
    sum += relative * relative;
  }
  return sum;
}

}  // namespace

TEST_CASE("cost: points on a line give the line, over six powers of ten") {
  const CostLine line = fit_cost(on_line(2e-6, 1e-10));
  CHECK(line.alpha == doctest::Approx(2e-6).epsilon(1e-9));
  CHECK(line.beta == doctest::Approx(1e-10).epsilon(1e-9));
}

TEST_CASE("cost: of points beside a line no line near is better") {
  auto points = on_line(2e-6, 1e-10);
  for (std::size_t i = 0; i < points.size(); ++i) points[i].seconds *= i % 3 == 0 ? 1.3 : 0.9;
  const CostLine best = fit_cost(points);
  for (const double a : {0.99, 1.0, 1.01})
    for (const double b : {0.99, 1.0, 1.01})
      CHECK(error_of(best, points) <= error_of({best.alpha * a, best.beta * b}, points));
}

TEST_CASE("cost: nothing is below zero, and few points are no trouble") {
  const CostLine falling = fit_cost(std::vector<CostPoint>{{1, 3}, {2, 2}, {3, 1}});
  CHECK(falling.beta == 0);
  CHECK(falling.alpha > 0);
  const CostLine steep = fit_cost(std::vector<CostPoint>{{1, 1}, {2, 4}, {3, 9}});
  CHECK(steep.alpha == 0);
  CHECK(steep.beta > 0);
  CHECK(fit_cost(std::vector<CostPoint>{{0, 5e-6}}).alpha == doctest::Approx(5e-6));
  CHECK(fit_cost(std::vector<CostPoint>{{8, 4}, {8, 4}}).seconds(8) == doctest::Approx(4));
  CHECK(fit_cost({}).seconds(8) == 0);
}
