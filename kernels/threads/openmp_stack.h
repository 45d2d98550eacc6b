// Reads the stack size of OpenMP threads from the environment.
#ifndef RAGGEMM_KERNELS_THREADS_OPENMP_STACK_H_
#define RAGGEMM_KERNELS_THREADS_OPENMP_STACK_H_

#include <cstddef>

namespace raggemm {

// Returns the stack size that the environment sets for the threads of libgomp, in bytes. 0: it sets none that is valid,
// and threads have the default size of the C library.
//
// The first valid value of OMP_STACKSIZE, GOMP_STACKSIZE and OMP_STACKSIZE_ALL (libgomp 13 and later) counts. It is an
// integer in KiB, or in the unit B, K, M or G that follows it. Units may be in upper or lower case, and spaces may
// surround both. libgomp reads the variables when it is loaded, so this function must be called then.
size_t OpenMpStackSize();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_THREADS_OPENMP_STACK_H_
