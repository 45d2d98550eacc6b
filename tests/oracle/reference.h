// The specification of GroupedGemm: the value of every element of out in float64, and its largest permitted error.
//
// The problem must be valid. MakePlan checks this, and these functions do not. They only return an error if the dims
// arrays fit no mode. If c is in the memory of out, compute the reference before the call overwrites c. This code is
// simple and slow, so callers with large results ask for a few elements only.
//
// With dims arrays [P,R,G] every operand is a stack of matrices of equal shape: one per problem and replica, or one per
// problem and group if the operand has a group axis.
#ifndef RAGGEMM_TESTS_ORACLE_REFERENCE_H_
#define RAGGEMM_TESTS_ORACLE_REFERENCE_H_

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
  // Largest permitted |got - want| of each element. It is 0 if out is s32, and for elements that belong to no group,
  // which are zeros or copies of c.
  std::vector<double> bound;
};
// Returns the expected values and bounds of all elements of out, or of the elements with the linear indices
// `out_elements`.
absl::StatusOr<Reference> ComputeReference(const GroupedGemmProblem& problem);
absl::StatusOr<Reference> ComputeReferenceAt(const GroupedGemmProblem& problem, absl::Span<const int64_t> out_elements);

// Returns the largest error of a sum of products by the rule of an arithmetic, divided by the sum of the magnitudes of
// all summands. The error includes the roundings of alpha, c and bias. `contraction` is the number of steps of k.
// reference.cc has the proof.
double RelativeErrorOfSum(const Arithmetic& arithmetic, double contraction, double replicas = 1);

// Returns |got - want| / bound, which is above 1 if `got` is wrong. Returns 0 if both are NaN, or if `got` is an
// infinity to which `want` rounds in out's type. Returns infinity for any other NaN or infinity.
double ErrorInUnitsOfBound(double got, double want, double bound, DType out);

// The matrix of one group inside a buffer. If the operand is transposed, this is the matrix after transposing.
struct MatrixView {
  int64_t start, rows, cols, row_step, col_step;
  // Only for column blocks: `block_cols` is the number of columns of a block. At the start of each further block,
  // `block_skip` elements are skipped, in addition to col_step.
  int64_t block_cols = 1, block_skip = 0;
  // Row i of this matrix is row row_index[first_index + i] of the operand. Null: rows of the operand are in order.
  const Array* row_index = nullptr;
  int64_t first_index = 0;
  int64_t At(int64_t i, int64_t j) const {
    return start + (row_index != nullptr ? ToInteger(*row_index, first_index + i) : i) * row_step + j * col_step +
           j / block_cols * block_skip;
  }
};

// The matrices and parameters of one processed group. It computes r = alpha * (sum over terms of lhs x rhs) + beta * c
// + bias. out is r, or the activation of r (problem.h). c has the layout of out. Without steps of k the sum is zero and
// alpha has no effect.
struct GroupProduct {
  struct Term {
    MatrixView lhs, rhs;
  };
  MatrixView out;
  std::vector<Term> terms;  // Products that are summed, in this order: one, or for ragged K one per replica.
  int64_t alpha = 0;        // Index of the group's value in alpha.
  int64_t beta = 0;         // Index of the group's value in beta.
  int64_t bias = 0;         // Index of the first element of the group's bias in the array bias.
  // Indices of the group's scales and zero points in their arrays, if the arrays have one value per group.
  int64_t lhs_scale = 0, rhs_scale = 0, lhs_zero = 0, rhs_zero = 0;
};
// Returns the products of all processed groups. Elements of out that are in none of the products belong to no processed
// group.
absl::StatusOr<std::vector<GroupProduct>> GroupProducts(const GroupedGemmProblem& problem);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_REFERENCE_H_
