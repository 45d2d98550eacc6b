// The specification: the value of every element of out in float64, and the largest error that a result may have.
//
// The input must be valid, which MakePlan checks. The only error is a set of dims arrays that is no mode. If out is c,
// ask before c is overwritten. This code is never optimised, so callers with large results ask for some elements only.
//
// With dims arrays [P,R,G] every operand is a stack of equal matrices: one per (p,r), or one per p and group if it has
// a group axis. The rhs of ragged N has one per p.
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
  // Largest allowed |got - want|. 0 for integers, and for elements of out that are a zero or a copy of c.
  std::vector<double> bound;
};
// Returns the expected values of all elements of out, or of those with these linear indices.
absl::StatusOr<Reference> ComputeReference(const GroupedGemmProblem& problem);
absl::StatusOr<Reference> ComputeReferenceAt(const GroupedGemmProblem& problem, absl::Span<const int64_t> out_elements);

// Returns the largest error of a sum of products by the rule of an arithmetic, as a share of the sum of all magnitudes.
// Includes alpha, c, bias and their roundings. reference.cc has the proof.
double RelativeErrorOfSum(const Arithmetic& arithmetic, double contraction, double replicas = 1);

// Returns |got - want| / bound. Results above 1 are wrong. A NaN is right if want is a NaN, and an infinity if want
// rounds to it in out's type. Other infinities and NaNs have an infinite error.
double ErrorInUnitsOfBound(double got, double want, double bound, DType out);

// The matrix of one group inside a buffer, transposed if the operand is.
struct MatrixView {
  int64_t start, rows, cols, row_step, col_step;
  // Columns of a column block, and elements to skip between blocks, in addition to col_step.
  int64_t block_cols = 1, block_skip = 0;
  // Rows of the operand that are the rows of this matrix, from row_index[first_index] on. Null: rows are in order.
  const Array* row_index = nullptr;
  int64_t first_index = 0;
  int64_t At(int64_t i, int64_t j) const {
    return start + (row_index != nullptr ? ToInteger(*row_index, first_index + i) : i) * row_step + j * col_step +
           j / block_cols * block_skip;
  }
};

// One processed group: out = activation(alpha * (sum over terms of lhs x rhs) + beta * c + bias). c has the layout of
// out. An empty contraction gives zero for any alpha.
struct GroupProduct {
  struct Term {
    MatrixView lhs, rhs;
  };
  MatrixView out;
  std::vector<Term> terms;  // One term, or for ragged K one per replica, summed in order.
  int64_t alpha = 0;        // Index of the group's alpha.
  int64_t beta = 0;         // Index of the group's beta.
  int64_t bias = 0;         // Index of the group's first bias element.
  // Indices of the group's scales and zero points, if they are per group.
  int64_t lhs_scale = 0, rhs_scale = 0, lhs_zero = 0, rhs_zero = 0;
};
// Returns the products of all processed groups. Elements of out without a product belong to no group.
absl::StatusOr<std::vector<GroupProduct>> GroupProducts(const GroupedGemmProblem& problem);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_REFERENCE_H_
