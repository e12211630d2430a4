// What every communicator must do, written once and run on each transport by its tests. The checks
// throw WorldError("conformance: ...") when a result is not what a slow, obvious twin says.
#pragma once
#include <string>

#include "comm/communicator.h"

namespace tutti::comm {

// All operations, dtypes and reductions; counts 0, 1, primes and about a chunk of 4096 bytes;
// buffers in ordinary and in shared memory.
void check_conformance(Communicator& communicator);

// The same for uneven parts: counts with zeros, primes, and one over a chunk on one rank; outputs
// also in place; sums with the bits of the sum to all. Part of check_conformance().
void check_parts(Communicator& communicator);

// Every reduction of every element type, and reduce, gather and scatter with every root; counts 0,
// 1, a prime and one over a chunk. Part of check_conformance().
void check_types(Communicator& communicator);

// Messages in both directions between all ranks while collectives run.
void check_messages_beside_collectives(Communicator& communicator);

// `rounds` operations of varying kind with each rank late by random moments.
void check_with_delays(Communicator& communicator, int rounds);

// The bytes of a sum over `leaves` seeded micro-batches, spread evenly over the ranks, accumulated
// by arrivals_of() and reduced by tree_all_reduce(); and the same by a plain recursion. Partial
// sums of 16-bit types stay exact here, so that they do not depend on the cut.
std::string tree_sum(Communicator& communicator, int leaves, std::size_t count, DType type);
std::string tree_sum_twin(int leaves, std::size_t count, DType type);

}  // namespace tutti::comm
