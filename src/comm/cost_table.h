// What operations should take by the costs that `tutti bench comm` measured on this machine
// (docs/formats/comm_profile.md).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "comm/cost.h"

namespace tutti::comm {

class CostTable {
 public:
  // The tables of one transport; "" takes the file's first. Those of shared buffers where there are
  // any. WorldError when the file cannot be read, ConfigError when it is no such profile or has no
  // such transport.
  static CostTable read(const fs::path& file, std::string_view transport = "");

  const std::string& transport() const { return transport_; }

  // Seconds of one call among `ranks`, by the name that groups give it: "tree_all_reduce". `bytes`
  // of the largest buffer, as in comm/cost.h. Between two measured sizes along the straight line,
  // beyond them along the first's constant and the last two's slope. For other ranks than were
  // measured: of the size that has the same traffic a rank. None: it was not measured.
  std::optional<double> seconds(std::string_view operation, double bytes, int ranks) const;

 private:
  struct Row {
    int ranks = 0;
    std::vector<CostPoint> points;  // ascending
  };
  std::string transport_;
  std::map<std::string, Row, std::less<>> rows_;  // by the measured operation
};

}  // namespace tutti::comm
