// The specification of GroupedGemm: the value of every element of out in float64, and its largest permitted error.
//
// The problem must be valid. MakePlan checks this. These functions return an error only if the dims arrays fit no mode.
// If c is in the memory of out, compute the reference before the call overwrites c. Callers with large results ask for
// a few elements only, because this code is slow.
//
// With dims arrays [P,R,G] every operand is a stack of matrices of equal shape: one per problem and replica, or one per
// problem and group if the operand has a group axis.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "raggemm/arithmetic.h"
#include "raggemm/element.h"
#include "raggemm/problem.h"

namespace raggemm {

struct Reference {
  std::vector<double> want;
  // Largest permitted |got - want| of each element. 0 if out is s32, and for elements of no group (zeros or copies of
  // c).
  std::vector<double> bound;
};
// Returns the values and bounds of all elements of out, or of those with the linear indices `out_elements`.
absl::StatusOr<Reference> ComputeReference(const GroupedGemmProblem& problem);
absl::StatusOr<Reference> ComputeReferenceAt(const GroupedGemmProblem& problem, absl::Span<const int64_t> out_elements);

// Returns the error bound of a sum of products, relative to the sum of the magnitudes of all summands. Includes the
// roundings of alpha, c and bias. `contraction` is the number of steps of k. reference.cc has the proof.
double RelativeErrorOfSum(const Arithmetic& arithmetic, double contraction, double replicas = 1);

// Returns |got - want| / bound, which is above 1 if `got` is wrong. Returns 0 if both are NaN, or if `want` rounds to
// the infinity `got` in out's type. Returns infinity for any other NaN or infinity.
double ErrorInUnitsOfBound(double got, double want, double bound, DType out);

// The matrix of one group inside a buffer. If the operand is transposed, this is the matrix after transposing. The
// indices of elements of kWordBlocks are those of column blocks. Dequantizer finds the stored elements.
struct MatrixView {
  int64_t start, rows, cols, row_step, col_step;
  // Only for blocks of columns: columns of a block, and elements to skip before each further block, besides col_step.
  int64_t block_cols = 1, block_skip = 0;
  // If set, row i is row row_index[first_index + i] of the operand. Null: rows are in order.
  const Array* row_index = nullptr;
  int64_t first_index = 0;
  int64_t At(int64_t i, int64_t j) const {
    return start + (row_index != nullptr ? ToInteger(*row_index, first_index + i) : i) * row_step + j * col_step +
           j / block_cols * block_skip;
  }
};

// The matrices and parameters of one processed group. Its result is r = alpha * (sum over terms of lhs x rhs) + beta *
// c + bias, or the activation of r (problem.h). c has the layout of out. Without steps of k the sum is zero and alpha
// has no effect.
struct GroupProduct {
  struct Term {
    MatrixView lhs, rhs;
  };
  MatrixView out;
  std::vector<Term> terms;  // Products to sum, in order. One, or one per replica for ragged K.
  int64_t alpha = 0;        // Index in alpha.
  int64_t beta = 0;         // Index in beta.
  int64_t bias = 0;         // Index of the first element of the group's bias.
  // Indices in arrays of scales and zero points that have one value per group.
  int64_t lhs_scale = 0, rhs_scale = 0, lhs_zero = 0, rhs_zero = 0;
};
// Returns the products of all processed groups.
absl::StatusOr<std::vector<GroupProduct>> GroupProducts(const GroupedGemmProblem& problem);

}  // namespace raggemm
