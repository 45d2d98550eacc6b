#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {

// A product C [m,n] = A [m,k] x B [k,n] of row-major matrices, as in BLAS. A transposed A is stored as [k,m], and a
// transposed B as [n,k].
struct Product {
  bool a_transposed, b_transposed;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;  // Elements from one stored row to the next.
  const void *a, *b;
  void* c;
};
Product ProductOf(const GemmSeries& series, size_t group);

// Returns the indices of the groups, sorted by falling number of rows.
std::vector<size_t> LargestFirst(const GemmSeries& series);

int LibraryThreads(PeerThreads threading, int threads);

class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads);
  ~OpenMpThreads();
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  const int before_;
};

// Calls multiply(group, thread) for every group. kOwn: in the calling thread, with `thread` 0. kOuter: in `threads`
// OpenMP threads, which take the largest group that is left. Ends at the first error.
absl::Status ForEachGroup(const GemmSeries& series, PeerThreads threading, int threads,
                          absl::FunctionRef<absl::Status(size_t group, int thread)> multiply);

}  // namespace raggemm::bench
