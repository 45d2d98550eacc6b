// Where things lie: the matrices of a group, in the operands of a checked call.
#ifndef RAGGEMM_KERNELS_CHECK_MATRICES_H_
#define RAGGEMM_KERNELS_CHECK_MATRICES_H_

#include <cstdint>

#include "kernels/check/checked.h"
#include "raggemm/format.h"

namespace raggemm {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// rows x cols of op(operand) of one group; element (i, j) stands IndexOf(i, j) elements behind data, one of the steps
// being 1. In column blocks a row goes on in the next block, block_skip elements and a step behind the last of this.
struct Matrix {
  int64_t IndexOf(int64_t row, int64_t col) const {
    return row * row_step + col * col_step + (col >> block_bits) * block_skip;
  }
  char* data;
  int64_t rows, cols;
  int64_t row_step, col_step;
  int block_bits = 0;  // a shift, for each strip asks
  int64_t block_skip = 0;
};

inline const char* ElementAt(const Matrix& x, DType dtype, int64_t row, int64_t col) {
  return x.data + StepOf(dtype, x.IndexOf(row, col));
}

// The product of one group: for ragged K the sum over all replicas, else of one replica.
struct GroupGemm {
  int64_t problem, group, replica;  // group counts the processed ones
};

// Units stand in the order of the weights, then replicas, so that weights stream once: (problem, group, replica).
int64_t CountGemms(const Checked& checked);
GroupGemm GemmAt(const Checked& checked, int64_t gemm);
void NextGemm(const Checked& checked, GroupGemm& gemm);  // the one behind it, or behind the last

Matrix LocateMatrix(const Checked& checked, const Operand& operand, const GroupGemm& gemm);

// Finds the row of a unit in an array with a row for each group: alpha, beta, bias, scales.
int64_t RowOf(const Checked& checked, GroupValues::Per per, const GroupGemm& gemm);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_MATRICES_H_
