// A series of groups as matrix products, done one by one or by several threads at once.
#ifndef RAGGEMM_BENCH_PEERS_SERIES_H_
#define RAGGEMM_BENCH_PEERS_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {

// C [m,n] = A [m,k] x B [k,n], as BLAS has it: row-major, an operand that is transposed is stored [k,m] or [n,k].
struct Product {
  bool a_transposed, b_transposed;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;  // elements from one stored row to the next
  const void *a, *b;
  void* c;
};
Product ProductOf(const GemmSeries& series, size_t group);

// Groups by falling number of rows, equal ones in their order.
std::vector<size_t> LargestFirst(const GemmSeries& series);

// On how many threads the library works.
int LibraryThreads(PeerThreads way, int threads);

// OpenMP's default number of threads in the calling thread, and as it was at the end.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads);
  ~OpenMpThreads();
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  const int before_;
};

// Calls multiply for every group: in the calling thread one by one (kOwn; thread is 0), or from `threads` OpenMP
// threads, each of which takes the largest group that is left (kOuter; 0 <= thread < threads). The first error ends it.
absl::Status ForEachGroup(const GemmSeries& series, PeerThreads way, int threads,
                          absl::FunctionRef<absl::Status(size_t group, int thread)> multiply);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PEERS_SERIES_H_
