// flight_bench: what it costs to write down an operation (asked, started, ended), and a span.
#include <cstdio>

#include "base/clock.h"
#include "comm/flight_recorder.h"

using namespace tutti;
using namespace tutti::comm;

int main() {
  const TempFolder folder;
  FlightRecorder recorder(folder.path() / "rank-000.flight", 0, 2);
  const int group = recorder.add_group("data", 1, 0, 2);
  constexpr int calls = 200000;
  double start = real_clock().now();
  for (int i = 1; i <= calls; ++i) {
    const std::uint64_t order =
        recorder.ask({group, "all_reduce", DType::f32, 4096, static_cast<std::uint64_t>(i), -1,
                      false, std::source_location::current()});
    recorder.start(order);
    recorder.end(order, false);
  }
  std::printf("an operation: %.0f ns\n", 1e9 * (real_clock().now() - start) / calls);
  start = real_clock().now();
  for (int i = 0; i < calls; ++i) recorder.span("forward", 1, 2);
  std::printf("a span: %.0f ns\n", 1e9 * (real_clock().now() - start) / calls);
}
