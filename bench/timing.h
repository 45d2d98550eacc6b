// Work on several threads at once, timed as one, while nothing else of the process runs. Threads that wait for work by
// spinning take cores from whatever is timed next.
#ifndef RAGGEMM_BENCH_TIMING_H_
#define RAGGEMM_BENCH_TIMING_H_

#include <vector>

#include "absl/functional/function_ref.h"

namespace raggemm::bench {

// Runs body(thread) on each of `threads` threads. Seconds from their common start to the end of the last.
double SecondsOnThreads(int threads, absl::FunctionRef<void(int thread)> body);

// Pieces of work a second, of all threads together.
struct PieceRates {
  double fastest;  // While the first thread ran some successive pieces, at the best moment.
  double overall;  // From the start to the end of the last thread.
};

// Runs body(thread) `pieces` times on each of `threads` threads at once. `fastest` is that of `window` successive
// pieces: whatever takes a core away at another moment does not lower it.
PieceRates RunPieces(int threads, int pieces, int window, absl::FunctionRef<void(int thread)> body);

// Returns how many pieces a thread had finished at a moment. `times` are its start and the ends of its pieces. A piece
// in progress counts in part.
double PiecesBefore(const std::vector<double>& times, double moment);

// OpenMP's workers, which spin for 18 ms after a parallel region, do so for about a millisecond instead, unless the
// environment says otherwise. Long enough to be hot from one product of a series to the next and at the end of a call,
// so that nobody is slower for it: passive waiting would cost a wake-up a product. The library reads the environment
// when it is loaded, so the process starts itself again. Call it first in main. OpenBLAS has threads of its own, which
// peers/openblas.cc limits.
void LimitSpinning(char** argv);

// Returns when no thread of the process is running but this one, after 100 ms at the latest. To be called before
// everything that is timed.
void WaitUntilQuiet();

// Between the nearest two where there is no value just there; 0 without values.
double Quantile(std::vector<double> values, double share);
double Median(std::vector<double> values);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_TIMING_H_
