#include "events/summary.h"

#include "events/reader.h"

namespace tutti::events {

Json make_summary(const RunFolder& run, int exit_code, int workers) {
  Json summary = {{"steps", 0},          {"loss", nullptr}, {"validation_loss", nullptr},
                  {"tokens_per_second", nullptr}, {"mfu", nullptr}, {"seconds", 0},
                  {"workers", workers},  {"exit", exit_code}};
  double first = 0;
  for (const Json& record : read_events(run.events(0))) {
    const std::string kind = record.value("kind", "");
    const double time = record.value("time", 0.0);
    if (first == 0) first = time;
    if (kind == "scalars") {
      summary["steps"] = record["step"];
      summary["seconds"] = time - first;
      for (const char* key : {"loss", "validation_loss", "tokens_per_second", "mfu"})
        if (record.contains(key)) summary[key] = record[key];
    } else if (kind == "instant" && record.value("name", "") == "done") {
      summary.update(record["data"]);
    } else if (kind == "instant" && record.value("name", "") == "start") {
      first = time;
    }
  }
  summary["workers"] = workers;
  summary["exit"] = exit_code;
  return summary;
}

void write_summary(const RunFolder& run, const Json& summary) {
  write_file(run.summary(), summary.dump(2) + "\n");
}

}  // namespace tutti::events
