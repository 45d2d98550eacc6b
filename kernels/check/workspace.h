// The int64 workspace of a call has these arrays, in this order:
//
//     | for each dims array that is set: sizes (n) | starts (n + 1) | ...
//     | first_group (n) | tile_prefix (n + 1) | cost_prefix (n + 1) | two spare arrays of n + 1 for later versions |
//
// n = P*R*G. The arrays start at multiples of 64 bytes. first_group needs P*R elements, which are at most n if there
// are groups.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {

class Workspace {
 public:
  // Checks the size of the memory. InvalidArgument: it is smaller than WorkspaceSizeFor says, or that size overflows.
  // CheckBuffers checks the address.
  static absl::Status Check(absl::Span<int64_t> memory, int dims_arrays, int64_t groups);

  explicit Workspace(absl::Span<int64_t> memory);

  // Returns the next n elements of the workspace, not initialized.
  int64_t* Take(int64_t n);

 private:
  int64_t* next_;
};

}  // namespace raggemm
