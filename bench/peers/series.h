// Runs the products of a series, one after the other or on several threads at once.
#ifndef RAGGEMM_BENCH_PEERS_SERIES_H_
#define RAGGEMM_BENCH_PEERS_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {

// C [m,n] = A [m,k] x B [k,n], as in BLAS: row-major. A transposed operand is stored [k,m] or [n,k].
struct Product {
  bool a_transposed, b_transposed;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;  // Elements from one stored row to the next.
  const void *a, *b;
  void* c;
};
Product ProductOf(const GemmSeries& series, size_t group);

// Returns the indices of the groups, sorted by falling number of rows. Groups with the same number of rows keep their
// order.
std::vector<size_t> LargestFirst(const GemmSeries& series);

// Returns the number of threads that the library uses for a product: `threads` with kOwn, 1 with kOuter.
int LibraryThreads(PeerThreads threading, int threads);

// Sets OpenMP's default number of threads in the calling thread, and restores it at the end.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads);
  ~OpenMpThreads();
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  const int before_;
};

// Calls multiply for every group. kOwn: in the calling thread, one by one, with thread 0. kOuter: from `threads` OpenMP
// threads, 0 <= thread < threads, which each take the largest group that is left. Ends at the first error.
absl::Status ForEachGroup(const GemmSeries& series, PeerThreads threading, int threads,
                          absl::FunctionRef<absl::Status(size_t group, int thread)> multiply);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PEERS_SERIES_H_
