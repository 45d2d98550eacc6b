#ifndef RAGGEMM_KERNELS_THREADS_OPENMP_STACK_H_
#define RAGGEMM_KERNELS_THREADS_OPENMP_STACK_H_

#include <cstddef>

namespace raggemm {

// Bytes of the stack of each thread that libgomp makes, as its environment variables ask for; 0: they say nothing that
// libgomp understands, and threads have the C library's size.
//
// The first of OMP_STACKSIZE, GOMP_STACKSIZE and OMP_STACKSIZE_ALL (libgomp from 13 on) that is valid counts: an
// integer in KiB, or in the unit B, K, M or G after it, in either case, with spaces around each. libgomp reads them
// when it is loaded, so a call has to be as early as that.
size_t OpenMpStackSize();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_THREADS_OPENMP_STACK_H_
