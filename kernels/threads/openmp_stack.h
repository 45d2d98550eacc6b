#pragma once

#include <cstddef>

namespace raggemm {

// Returns the stack size of libgomp's threads in bytes, or 0 if the environment sets no valid size.
//
// The first valid value of OMP_STACKSIZE, GOMP_STACKSIZE and OMP_STACKSIZE_ALL (libgomp 13 and later) counts: an
// integer in KiB, or an integer and the unit B, K, M or G in upper or lower case. Call this function when libgomp is
// loaded, because libgomp reads the variables at that time.
size_t OpenMpStackSize();

}  // namespace raggemm
