// Timing of work on several threads, while no other thread of the process runs. Threads that spin while they wait would
// take cores from the next measurement.
#ifndef RAGGEMM_BENCH_TIMING_H_
#define RAGGEMM_BENCH_TIMING_H_

#include <vector>

#include "absl/functional/function_ref.h"

namespace raggemm::bench {

// Runs body(thread) on each of `threads` threads. Returns the seconds from their common start to the last one's end.
double SecondsOnThreads(int threads, absl::FunctionRef<void(int thread)> body);

// Pieces of work per second, of all threads together.
struct PieceRates {
  double fastest;  // Rate during the fastest successive pieces of the first thread.
  double overall;  // Rate from the start to the end of the last thread.
};

// Runs body(thread) `pieces` times on each of `threads` threads at once. `fastest` is the rate of `window` successive
// pieces, so a process that takes a core at another moment does not lower it.
PieceRates RunPieces(int threads, int pieces, int window, absl::FunctionRef<void(int thread)> body);

// Returns the number of pieces that a thread had finished at a moment. `times` are its start and the ends of its
// pieces. A piece in progress counts in part.
double PiecesBefore(const std::vector<double>& times, double moment);

// Shortens the time that OpenMP's workers spin after a parallel region, from 18 ms to about a millisecond, unless the
// environment sets it. They stay hot between the products of a series, and no contender becomes slower. Passive waiting
// would cost a wake-up per product. Restarts the process, because the OpenMP library reads the environment when it is
// loaded, so call this first in main. peers/openblas.cc limits the threads of OpenBLAS.
void LimitSpinning(char** argv);

// Waits until no other thread of the process is running, for at most 100 ms. Call it before every measurement.
void WaitUntilQuiet();

// Return a quantile of the values, interpolated between the nearest two, or 0 without values.
double Quantile(std::vector<double> values, double share);
double Median(std::vector<double> values);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_TIMING_H_
