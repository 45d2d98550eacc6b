// Locates the matrices of a group in the operands of a checked call.
#pragma once

#include <cstdint>

#include "kernels/check/checked.h"
#include "raggemm/format.h"

namespace raggemm {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// A matrix: op(operand) of one group. Element (i, j) is at index IndexOf(i, j) of `data`. row_step or col_step is 1.
// With column blocks, block_skip is added for each block to the left.
struct Matrix {
  int64_t IndexOf(int64_t row, int64_t col) const {
    return row * row_step + col * col_step + (col >> block_bits) * block_skip;
  }
  char* data;
  int64_t rows, cols;
  int64_t row_step, col_step;
  // log2 of the columns of a column block. 0: no column blocks. IndexOf runs for each panel, and a shift is faster than
  // a division.
  int block_bits = 0;
  int64_t block_skip = 0;
};

inline const char* ElementAt(const Matrix& x, DType dtype, int64_t row, int64_t col) {
  return x.data + StepOf(dtype, x.IndexOf(row, col));
}

// A group GEMM: the product of one group of one replica. With ragged K it sums over all replicas.
struct GroupGemm {
  int64_t problem;
  int64_t group;  // Index among the processed groups of the problem.
  int64_t replica;
};

// Returns the number of group GEMMs. Their order is problem, group, replica, so weights that replicas share are read
// once.
int64_t CountGemms(const Checked& checked);
GroupGemm GemmAt(const Checked& checked, int64_t gemm);
void NextGemm(const Checked& checked, GroupGemm& gemm);

Matrix LocateMatrix(const Checked& checked, const Operand& operand, const GroupGemm& gemm);

// Returns the row of GroupValues that belongs to a group GEMM.
int64_t RowOf(const Checked& checked, GroupValues::Per per, const GroupGemm& gemm);

}  // namespace raggemm
