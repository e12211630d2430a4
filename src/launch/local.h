// Runs a job's workers on this machine.
#pragma once
#include "launch/job.h"

namespace tutti::launch {

// Returns when every worker has ended and been reaped; nothing of the job is left then: no process,
// and nothing in the folder where the ranks met.
//
// The first worker to fail decides the exit code: 1, 2, 70 and 130 pass through, any other code and
// death by a signal become 1. Its last lines are shown with its rank; the others get SIGTERM, and
// SIGKILL after job.grace. SIGINT or SIGTERM to us becomes one SIGTERM
// to every worker (they save and end with 130); a second one kills them. A worker that ends with
// 130 when nothing reached us was told on another host: the same, with interrupt_grace. Throws
// WorldError if a worker cannot be started (the others are ended first). Call from the main thread;
// signal handlers are put back as they were.
Outcome run_local(const Job& job, const Hooks& hooks = {});

}  // namespace tutti::launch
