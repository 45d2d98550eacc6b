// Threads that wait for work by spinning take cores from whatever is timed next.
#ifndef RAGGEMM_BENCH_QUIET_H_
#define RAGGEMM_BENCH_QUIET_H_

namespace raggemm::bench {

// OpenMP's workers (GCC's spin for 18 ms after a parallel region, Intel's for 200) and OpenBLAS' (30 ms) get about a
// millisecond instead, unless the environment says otherwise. Long enough to be hot from one product of a series to the
// next and at the end of a call, so that nobody is slower for it: passive waiting would cost a wake-up a product. The
// libraries read the environment when they are loaded, so the process starts itself again. Call it first in main.
void LimitSpinning(char** argv);

// Returns when no thread of the process is running but this one, after 100 ms at the latest. To be called before
// everything that is timed.
void WaitUntilQuiet();

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_QUIET_H_
