// The int64 workspace of a call: one walker computes its size and hands out its slots.
//
//     | per set dims array: sizes (n) | starts (n + 1) | ...
//     | first_group (n) | tile_prefix (n + 1) | cost_prefix (n + 1) | two spare ones, for what plans may need later |
//
// n = P*R*G. Each slot starts at a multiple of 64 bytes; none overlap. P*R <= n wherever there is a group at all.
#ifndef RAGGEMM_KERNELS_CHECK_WORKSPACE_H_
#define RAGGEMM_KERNELS_CHECK_WORKSPACE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {

class Workspace {
 public:
  // InvalidArgument when it is smaller than WorkspaceSizeFor says. CheckBuffers has seen that it is there, and aligned.
  static absl::Status Check(absl::Span<int64_t> memory, int dims_arrays, int64_t groups);

  explicit Workspace(absl::Span<int64_t> memory);

  // The next slot of n elements, not initialised.
  int64_t* Take(int64_t n);

 private:
  int64_t* next_;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_WORKSPACE_H_
