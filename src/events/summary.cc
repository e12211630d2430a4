#include "events/summary.h"

#include "base/clock.h"
#include "events/reader.h"

namespace tutti::events {

namespace {

// Of the steps' time, what rank 0 waited for operations of its groups; null without steps.
Json exposed_share(const History& history) {
  double waited = 0, whole = 0;
  for (const auto& point : history.series("exposed_seconds")) waited += point.value;
  for (const auto& point : history.series("step_seconds")) whole += point.value;
  return whole > 0 ? Json(waited / whole) : Json();
}

}  // namespace

Json make_summary(const RunFolder& run, int exit_code, int workers) {
  const History history(run.events(0));
  const auto last = [&](const char* name) {
    const auto value = history.last(name);
    return value ? Json(*value) : Json();
  };
  double started = history.first_time(), ended = history.last_time();
  Json summary = {{"steps", history.last_step()},
                  {"loss", last("loss")},
                  {"validation_loss", last("validation_loss")},
                  {"tokens_per_second", last("tokens_per_second")},
                  {"mfu", last("mfu")},
                  {"seconds", 0},
                  {"workers", workers},
                  {"exit", exit_code}};
  Json done;
  for (const Json& record : history.instants()) {
    if (record["name"] == "start") {
      started = record["time"].get<double>();  // of the last time that it was taken up
      done = Json();  // It went on after that: its words are no longer the last.
      for (const char* key : {"name", "parameters"})
        if (record["data"].contains(key)) summary[key] = record["data"][key];
    }
    if (record["name"] == "done") done = record["data"];
  }
  summary["seconds"] = ended - started;
  if (workers > 1) summary["exposed"] = exposed_share(history);
  if (done.is_object()) summary.update(done);
  if (started > 0) summary["started"] = iso_time(started);
  if (ended > 0) summary["ended"] = iso_time(ended);
  summary["workers"] = workers;
  summary["exit"] = exit_code;
  return summary;
}

void write_summary(const RunFolder& run, const Json& summary) {
  write_file(run.summary(), summary.dump(2) + "\n");
}

}  // namespace tutti::events
