// Time as an interface, so that deadlines and rates are tested without waiting.
#pragma once
#include <cstdint>
#include <string>

namespace tutti {

class Clock {
 public:
  virtual ~Clock() = default;
  // Seconds from an arbitrary start; never runs backwards.
  virtual double now() const = 0;
  virtual void sleep(double seconds) = 0;
};

// The machine's monotonic clock.
Clock& real_clock();

// Seconds since 1970 (for records that outlive the process) and "2026-12-01T10:02:33.123Z".
double wall_seconds();
std::string iso_time(double wall_seconds);

class ManualClock : public Clock {
 public:
  double now() const override { return now_; }
  void sleep(double seconds) override { now_ += seconds; }

 private:
  double now_ = 0;
};

}  // namespace tutti
