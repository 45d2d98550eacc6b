// Teams of OpenMP threads, as far as they can be had: libgomp ends the process where it cannot make a thread.
#ifndef RAGGEMM_KERNELS_OPENMP_TEAM_H_
#define RAGGEMM_KERNELS_OPENMP_TEAM_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace raggemm {

// What a team has when all threads are asked for. 1 in a forked child, and where this is compiled without OpenMP.
int64_t OpenMpThreads();

// body(worker) once on each thread of a team of at most `threads`, worker 0 on the caller's. There are fewer where no
// more can be made, or have no memory. body must not throw.
void RunOpenMpTeam(int64_t threads, absl::FunctionRef<void(int64_t worker)> body);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_OPENMP_TEAM_H_
