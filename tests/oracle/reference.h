// The specification: what every element of out is, in float64, and how far a result may be from it.
//
// Valid input is assumed (MakePlan is what checks it); only a set of dims arrays that is no mode is an error.
// Where out is c, ask before it is overwritten. Never optimised: callers with much to compare ask for some elements.
//
// With dims arrays [P,R,G] every operand is a stack of equal matrices: one for each (p,r), for each p and group where
// it has a group axis, or, for rhs of ragged N, for each p.
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
  std::vector<double> bound;  // largest |got - want| allowed; 0 for integers, and where out is a zero or a copy of c
};
// One entry for each element of out, by linear index.
absl::StatusOr<Reference> ComputeReference(const GroupedGemmProblem& problem);
// One entry for each of these linear indices.
absl::StatusOr<Reference> ComputeReferenceAt(const GroupedGemmProblem& problem, absl::Span<const int64_t> out_elements);

// What a sum of products may be off by at most where it follows an arithmetic's rule, alpha, c and bias and their
// roundings included: a share of the sum of all magnitudes. reference.cc proves it.
double RelativeErrorOfSum(const Arithmetic& arithmetic, double contraction, double replicas = 1);

// |got - want| / bound: above 1 is wrong. A NaN is right where want is one, and so is the infinity to which want
// rounds in out's type; otherwise both are infinitely wrong.
double ErrorInUnitsOfBound(double got, double want, double bound, DType out);

// The matrix of one group inside a buffer, transposed where the operand is.
struct MatrixView {
  int64_t start, rows, cols, row_step, col_step;
  int64_t block_cols = 1, block_skip = 0;  // of column blocks: what else is between two blocks
  const Array* row_index = nullptr;        // of the operand's, from first_index on: which row each is
  int64_t first_index = 0;
  int64_t At(int64_t i, int64_t j) const {
    return start + (row_index != nullptr ? ToInteger(*row_index, first_index + i) : i) * row_step + j * col_step +
           j / block_cols * block_skip;
  }
};

// One processed group: out = alpha * (sum over terms of lhs x rhs) + beta * c + bias, c seen as out is, and what the
// activation makes of it. Without any k the product is zero whatever alpha is.
struct GroupProduct {
  struct Term {
    MatrixView lhs, rhs;
  };
  MatrixView out;
  std::vector<Term> terms;  // one; with ragged K one for each replica, summed in order
  int64_t alpha = 0;        // index of the group's alpha
  int64_t beta = 0;         // likewise
  int64_t bias = 0;         // index of the group's first bias element
  // Rows of the scales and zeros that have one for each group.
  int64_t lhs_scale = 0, rhs_scale = 0, lhs_zero = 0, rhs_zero = 0;
};
// What is multiplied with what, for every processed group. Whatever no `out` covers belongs to no group.
absl::StatusOr<std::vector<GroupProduct>> GroupProducts(const GroupedGemmProblem& problem);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_REFERENCE_H_
