#include "comm/cost.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "comm/cost_table.h"

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

namespace {

tutti::fs::path profile_in(const tutti::TempFolder& folder, const std::string& text) {
  const auto file = folder.path() / "profile.json";
  tutti::write_file(file, text);
  return file;
}

constexpr const char* two_transports = R"({"format": "tutti comm profile", "version": 1, "tables": [
  {"transport": "shm", "operation": "all_reduce", "buffers": "ordinary", "ranks": 2,
   "points": [{"bytes": 1000, "seconds": 9}]},
  {"transport": "shm", "operation": "all_reduce", "buffers": "shared", "ranks": 2,
   "points": [{"bytes": 3000, "seconds": 5}, {"bytes": 1000, "seconds": 1}]},
  {"transport": "tcp", "operation": "send_recv", "buffers": "ordinary", "ranks": 2,
   "points": [{"bytes": 0, "seconds": 0.5}]}]})";

}  // namespace

TEST_CASE("a cost table goes from point to point, and by traffic to other ranks") {
  const tutti::TempFolder folder;
  const auto table = tutti::comm::CostTable::read(profile_in(folder, two_transports));
  CHECK(table.transport() == "shm");
  CHECK(*table.seconds("tree_all_reduce", 500, 2) == doctest::Approx(1));
  CHECK(*table.seconds("all_reduce", 2000, 2) == doctest::Approx(3));
  CHECK(*table.seconds("all_reduce", 4000, 2) == doctest::Approx(7));
  // 4 ranks move 2 x 3/4 of a buffer each, 2 ranks 2 x 1/2.
  CHECK(*table.seconds("all_reduce", 2000, 4) == doctest::Approx(5));
  CHECK(!table.seconds("broadcast", 2000, 2));
  CHECK(!table.seconds("all_reduce", 2000, 1));
  const auto tcp = tutti::comm::CostTable::read(profile_in(folder, two_transports), "tcp");
  CHECK(*tcp.seconds("recv", 10, 2) == doctest::Approx(0.5));
}

TEST_CASE("what is no profile is refused with what it lacks") {
  using doctest::Contains;
  const tutti::TempFolder folder;
  const auto read = [&](const std::string& text, const char* transport = "") {
    return tutti::comm::CostTable::read(profile_in(folder, text), transport);
  };
  for (const char* text : {"", "{", "[]", "{}", R"({"format": "tutti comm profile"})",
                           R"({"format": "another", "tables": []})",
                           R"({"format": "tutti comm profile", "tables": [3]})"})
    CHECK_THROWS_WITH_AS(read(text), Contains("is no profile"), tutti::ConfigError);
  CHECK_THROWS_WITH_AS(read(two_transports, "gloo"), Contains("it has shm, tcp"),
                       tutti::ConfigError);
  CHECK_THROWS_WITH_AS(read(R"({"format": "tutti comm profile", "tables": []})"),
                       Contains("it has none"), tutti::ConfigError);
}
