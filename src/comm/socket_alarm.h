// How the ranks of a group tell each other that it is over and why: by a connection of each pair on
// which nothing else travels, so that the word comes through whatever the others are full of.
//
// Threads: all, any number.
#pragma once
#include <poll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/socket_link.h"

namespace tutti::comm {

class Alarm {
 public:
  // One connection a rank; none for this one.
  explicit Alarm(std::vector<Connection> connections);

  // The first reason stands: it goes to the peers, and who waits here wakes.
  void raise(const std::string& reason);
  bool raised() const { return raised_.load(); }
  std::string reason() const;

  // Sleeps until a descriptor of `set` is ready or the alarm is raised, here or by a peer; at most
  // `seconds`, maybe less. `set` keeps its length.
  void wait(std::vector<pollfd>& set, double seconds);
  // Gives a peer whose connection was lost a moment to tell why.
  void hear_last_word(int peer);

 private:
  static constexpr std::size_t longest = 1000;
  struct Word {
    std::uint32_t bytes = 0;
    std::array<char, longest> text{};
  };
  struct Line {
    explicit Line(Connection connection) : link(std::move(connection)) {}
    Link link;
    Word in;
    std::atomic<bool> open = true;
  };

  void listen();
  // What a peer said, once it is complete. Under the lock.
  static std::string heard(Line& line);
  void tell(Line& line);

  Descriptor bell_;  // readable once raised
  std::vector<std::unique_ptr<Line>> lines_;
  std::atomic<bool> raised_ = false;
  mutable std::mutex mutex_;  // of what follows and of the lines
  std::string reason_;
  Word out_;
};

}  // namespace tutti::comm
