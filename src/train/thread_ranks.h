// Ranks that are threads of this process, for what is looked at and not run: parity, layout show.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "collective/group.h"

namespace tutti::train {

// body(rank, world) on `ranks` threads that share this process's cores. What the first rank that
// threw said, with its number; the others were told to stop. "": none did. WorldError if
// memory ran out: that says nothing of the layout. ConfigError for more ranks than one process
// takes.
std::string on_thread_ranks(
    int ranks, const std::function<void(int, std::shared_ptr<collective::Group>)>& body);

}  // namespace tutti::train
