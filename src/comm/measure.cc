#include "comm/measure.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace tutti::comm {
namespace {

constexpr double sample_seconds = 100e-6;  // one is long beside the clock and short beside a turn
constexpr int least_samples = 5, most_samples = 4000, most_calls = 500;

std::size_t n(int value) { return static_cast<std::size_t>(value); }

// Whole numbers whose sum over 64 ranks f32 holds exactly.
float pattern(int rank, std::size_t i) { return static_cast<float>((n(rank) * 31 + i) % 251); }

// One operation on one size, as this rank sees it.
class Cell {
 public:
  Cell(Communicator& communicator, std::string_view operation, std::size_t bytes,
       MeasureBuffers buffers)
      : c_(communicator),
        operation_(operation),
        count_(bytes / sizeof(float)),
        in_(buffers.in),
        out_(buffers.out) {
    const auto known = std::ranges::find(measured_operations, operation);
    TUTTI_ASSERT(known != measured_operations.end(), "operation ", operation);
    for (int r = 0; r < size(); ++r) parts_.push_back(begin_of(r + 1) - begin_of(r));
    received_.assign(n(size()), mine());
  }

  void call() {
    if (operation_ == "all_reduce") return c_.all_reduce(in_, count_, DType::f32, Reduce::sum);
    if (operation_ == "reduce_scatter")
      return c_.reduce_scatter_v(in_, out_, parts_, DType::f32, Reduce::sum);
    if (operation_ == "all_gather") return c_.all_gather_v(in_, out_, parts_, DType::f32);
    if (operation_ == "all_to_all")
      return c_.all_to_all_v(in_, parts_, out_, received_, DType::f32);
    if (operation_ == "broadcast") return c_.broadcast(in_, count_, DType::f32, 0);
    if (operation_ == "barrier") return c_.barrier();
    const std::size_t bytes = count_ * sizeof(float);
    if (c_.rank() == 0) c_.send(in_, bytes, 1), c_.recv(out_, bytes, 1);
    if (c_.rank() == 1) c_.recv(out_, bytes, 0), c_.send(in_, bytes, 0);
  }

  double calls_in_seconds() const { return operation_ == "send_recv" ? 0.5 : 1; }

  void fill_and_check() {
    const bool silent = operation_ == "broadcast" && c_.rank() != 0;
    for (std::size_t i = 0; i < count_; ++i) in_[i] = silent ? -1 : pattern(c_.rank(), i);
    std::fill_n(out_, measure_room(count_ * sizeof(float), size()) / sizeof(float), -1.f);
    c_.barrier();
    call();
    check();
  }

  // Sums of zeros stay what they are, however often.
  void clear() { std::fill_n(in_, count_, 0.f); }

 private:
  int size() const { return c_.size(); }
  std::size_t begin_of(int rank) const { return count_ * n(rank) / n(size()); }
  std::size_t mine() const { return parts_[n(c_.rank())]; }

  void expect(const float* got, std::size_t count, const std::function<float(std::size_t)>& want) {
    for (std::size_t i = 0; i < count; ++i)
      if (const float value = want(i); got[i] != value)
        throw WorldError(str(c_.transport(), " ", operation_, " of ", count_ * sizeof(float),
                             " bytes, rank ", c_.rank(), ": element ", i, " is ", got[i],
                             " and must be ", value));
  }

  float sum_at(std::size_t i) const {
    float sum = 0;
    for (int r = 0; r < size(); ++r) sum += pattern(r, i);
    return sum;
  }

  void check() {
    const std::size_t begin = begin_of(c_.rank());
    if (operation_ == "all_reduce") expect(in_, count_, [&](auto i) { return sum_at(i); });
    if (operation_ == "reduce_scatter")
      expect(out_, mine(), [&](auto i) { return sum_at(begin + i); });
    if (operation_ == "broadcast") expect(in_, count_, [](auto i) { return pattern(0, i); });
    if (operation_ == "send_recv" && c_.rank() < 2)
      expect(out_, count_, [&](auto i) { return pattern(1 - c_.rank(), i); });
    for (int r = 0; r < size(); ++r) {
      if (operation_ == "all_gather")
        expect(out_ + begin_of(r), parts_[n(r)], [&](auto i) { return pattern(r, i); });
      if (operation_ == "all_to_all")
        expect(out_ + n(r) * mine(), mine(), [&](auto i) { return pattern(r, begin + i); });
    }
  }

  Communicator& c_;
  std::string_view operation_;
  std::size_t count_;
  float *in_, *out_;
  std::vector<std::size_t> parts_, received_;
};

double seconds_of(Communicator& c, int calls, const std::function<void()>& call) {
  c.barrier();
  const double start = real_clock().now();
  for (int i = 0; i < calls; ++i) call();
  return real_clock().now() - start;
}

// Rank 0's choice, as what fits the budget differs from rank to rank.
Timing plan(Communicator& c, double budget, const std::function<void()>& call) {
  double once = seconds_of(c, 1, call);
  for (int i = 0; i < 3; ++i) once = std::min(once, seconds_of(c, 2, call) / 2);
  once = std::max(once, 1e-8);
  std::int32_t chosen[2];
  chosen[0] = static_cast<int>(std::clamp(sample_seconds / once, 1.0, 1.0 * most_calls));
  chosen[1] = static_cast<int>(
      std::clamp(budget / (once * chosen[0]), 1.0 * least_samples, 1.0 * most_samples));
  c.broadcast(chosen, 2, DType::i32, 0);
  return {0, chosen[0], chosen[1]};
}

Timing timed(Communicator& c, double budget, const std::function<void()>& call) {
  Timing timing = plan(c, budget, call);
  const double start = real_clock().now();
  std::vector<double> seconds;
  std::uint8_t goes_on = 1;
  while (goes_on) {
    for (int i = 0; i < least_samples; ++i) seconds.push_back(seconds_of(c, timing.calls, call));
    goes_on = static_cast<int>(seconds.size()) < timing.samples &&
              real_clock().now() - start < 2 * budget;
    c.broadcast(&goes_on, 1, DType::u8, 0);
  }
  timing.samples = static_cast<int>(seconds.size());
  c.all_reduce(seconds.data(), seconds.size(), DType::f64, Reduce::max);
  const auto middle = seconds.begin() + timing.samples / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  timing.seconds = *middle / timing.calls;
  return timing;
}

}  // namespace

// Of all_to_all, parts differ by an element and each rank may get the longest from all.
std::size_t measure_room(std::size_t bytes, int ranks) { return bytes + sizeof(float) * n(ranks); }

Timing measure(Communicator& communicator, std::string_view operation, std::size_t bytes,
               MeasureBuffers buffers, double budget) {
  Cell cell(communicator, operation, bytes, buffers);
  cell.fill_and_check();
  cell.clear();
  Timing timing = timed(communicator, budget, [&] { cell.call(); });
  timing.seconds *= cell.calls_in_seconds();
  cell.fill_and_check();
  communicator.barrier();
  return timing;
}

double MemoryRates::limit() const { return std::max({copy, triad, update}); }

MemoryRates measure_memory(Communicator& c, std::size_t bytes, double budget) {
  const std::size_t count = bytes / sizeof(float);
  std::vector<float> one(count, 1), two(count, 2), three(count, 3);
  float *a = one.data(), *b = two.data(), *d = three.data();
  const auto rate = [&](double moved, const std::function<void()>& call) {
    return c.size() * moved * static_cast<double>(count * sizeof(float)) /
           timed(c, budget, call).seconds;
  };
  MemoryRates rates{};
  rates.copy = rate(2, [&] { std::memcpy(a, b, count * sizeof(float)); });
  rates.triad = rate(3, [&] {
    for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + 0.5f * d[i];
  });
  rates.update = rate(2, [&] {
    for (std::size_t i = 0; i < count / 2; ++i) a[i] = b[i] = (a[i] + b[i]) * 0.5f;
  });
  return rates;
}

double all_reduce_traffic(std::size_t bytes, int ranks) {
  return 2.0 * ranks * static_cast<double>(bytes);
}

}  // namespace tutti::comm
