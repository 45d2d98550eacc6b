// Checks quantized operands.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns the types of products and sums (grouped_gemm.h). Integers that are summed in s32 are multiplied as s8 or u8.
Products ProductsOf(const GroupedGemmProblem& problem);

// Checks scales and zero points, and adds them to the operands of `checked`. Decides whether scales multiply sums.
absl::Status ResolveQuantParams(const GroupedGemmProblem& problem, Checked& checked);

// Blocks of rounded rows are multiples of this many steps of k. Only a row or its last block may be shorter.
inline constexpr int64_t kLeastLhsBlock = 32;
// Blocks of rhs along K have a multiple of this many steps, if rows are rounded.
inline constexpr int64_t kRhsBlockStep = 16;
// Returns the steps of k in a block of rows of k steps, at least 1. `given` is GroupedGemmProblem::lhs_block.
inline int64_t LhsBlockOf(int64_t given, int64_t k) {
  const int64_t most = std::max<int64_t>(k, 1);
  return given == 0 ? most : std::min(given, most);
}

// Returns true if rows can be rounded for an rhs of this type: integers and f4e2m1fn.
bool HasCodes(DType dtype);

}  // namespace raggemm
