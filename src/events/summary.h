// summary.json: what came of a run, as one object.
#pragma once
#include "base/json.h"
#include "events/run_folder.h"

namespace tutti::events {

// Keys: steps, loss, validation_loss, tokens_per_second, mfu, seconds, workers, exit, and what the
// trainer's last record has beside (name, tokens, parameters, first_step_seconds, nats_per_byte),
// and started, ended (UTC). `seconds` and `started` are of the last process, if it was resumed. A
// run that did not come to its last record gives its last scalars; null where there is none.
Json make_summary(const RunFolder& run, int exit_code, int workers);
void write_summary(const RunFolder& run, const Json& summary);

}  // namespace tutti::events
