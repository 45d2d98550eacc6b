// Times work on several threads, while no other thread of the process runs.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"

namespace raggemm::bench {

// Runs body(thread) on `threads` threads. Returns the seconds from their common start to the end of the last one.
double SecondsOnThreads(int threads, absl::FunctionRef<void(int thread)> body);

// Rates of all threads together, in pieces per second.
struct PieceRates {
  double fastest;
  double overall;  // Mean rate from the common start to the end of the last thread.
};

// Runs body(thread) `pieces` times on each thread. PieceRates::fastest is the highest rate during `window` successive
// pieces of thread 0. A process that takes a core for a moment does not lower it.
PieceRates RunPieces(int threads, int pieces, int window, absl::FunctionRef<void(int thread)> body);

// Returns the pieces that a thread had finished at `moment`, including a fraction of the piece in progress. `times` has
// the thread's start and the ends of its pieces.
double PiecesBefore(const std::vector<double>& times, double moment);

// Makes OpenMP's workers spin for about a millisecond after a parallel region, instead of 18 ms. They still spin
// between the products of a series, so no contender becomes slower. OpenMP reads the environment only when it is
// loaded, so this restarts the process. main must call it first. Does nothing if GOMP_SPINCOUNT is already set.
void LimitSpinning(char** argv);

// Waits until no other thread of the process is running, for at most 100 ms.
void WaitUntilQuiet();

// Return a quantile or the median, interpolated between the nearest values. 0 if there are no values.
double Quantile(std::vector<double> values, double share);
double Median(std::vector<double> values);

}  // namespace raggemm::bench
