// A wire between two network namespaces with a rate and a delay, for kernels without netem: packets
// that one end's TUN device sends come out of the other's later, one after another at the rate.
//
//   slow_link NAMESPACE NAMESPACE BITS_PER_SECOND SECONDS
//
// The devices are called "wire". A queue holds 100 ms at the rate beside what is on its way; what
// comes on top is dropped. Prints "ready", and ends when its standard input does.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

int device_in(const char* space) {
  const int name = open((std::string("/run/netns/") + space).c_str(), O_RDONLY);
  if (name < 0 || setns(name, CLONE_NEWNET) != 0) fail(space);
  const int device = open("/dev/net/tun", O_RDWR);
  ifreq request{};
  std::strcpy(request.ifr_name, "wire");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) fail("/dev/net/tun");
  close(name);
  return device;
}

// One direction.
class Way {
 public:
  Way(int from, int to, double rate, double delay)
      : from_(from), to_(to), rate_(rate), delay_(delay) {
    std::thread([this] { take(); }).detach();
    std::thread([this] { give(); }).detach();
  }

 private:
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };

  static Clock::duration seconds(double value) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
  }

  void take() {
    std::vector<char> buffer(1 << 16);
    Clock::time_point free = Clock::now();  // when the wire takes the next
    for (ssize_t got; (got = read(from_, buffer.data(), buffer.size())) > 0;) {
      const auto now = Clock::now();
      if (free - now > seconds(0.1)) continue;
      free = std::max(free, now) + seconds(static_cast<double>(got) * 8 / rate_);
      const std::lock_guard lock(mutex_);
      packets_.push_back({free + seconds(delay_), {buffer.begin(), buffer.begin() + got}});
      came_.notify_one();
    }
  }

  void give() {
    for (;;) {
      std::unique_lock lock(mutex_);
      came_.wait(lock, [this] { return !packets_.empty(); });
      Packet packet = std::move(packets_.front());
      packets_.pop_front();
      lock.unlock();
      std::this_thread::sleep_until(packet.due);
      [[maybe_unused]] const auto lost = write(to_, packet.bytes.data(), packet.bytes.size());
    }
  }

  int from_, to_;
  double rate_, delay_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Packet> packets_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "slow_link NAMESPACE NAMESPACE BITS_PER_SECOND SECONDS\n");
    return 2;
  }
  const int a = device_in(argv[1]), b = device_in(argv[2]);
  const double rate = std::atof(argv[3]), delay = std::atof(argv[4]);
  const Way there(a, b, rate, delay), back(b, a, rate, delay);
  std::puts("ready");
  std::fflush(stdout);
  for (char byte; read(STDIN_FILENO, &byte, 1) > 0;) {
  }
  std::_Exit(0);
}
