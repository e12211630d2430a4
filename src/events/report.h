// report.html: a run to look at, in one file that needs nothing else.
#pragma once
#include "events/run_folder.h"

namespace tutti::events {

// From the event files, the summary and the recipe, whatever of them is there.
void write_report(const RunFolder& run);

}  // namespace tutti::events
