// What went wrong, for a person.
#pragma once
#include <exception>
#include <string>

namespace tutti::train {

// libtorch's errors without their backtrace; of what it asked for in vain, what to do.
std::string failure_text(const std::exception& error);

// Whether memory ran out, by libtorch's allocator or any other.
bool out_of_memory(const std::exception& error);

}  // namespace tutti::train
