// What an element of lhs or rhs stands for, one at a time, simple and slow.
#ifndef RAGGEMM_TESTS_ORACLE_DEQUANTIZER_H_
#define RAGGEMM_TESTS_ORACLE_DEQUANTIZER_H_

#include <cstdint>

#include "raggemm/problem.h"

namespace raggemm {

class Dequantizer {
 public:
  Dequantizer(const GroupedGemmProblem& problem, bool is_lhs);

  // Values at this index of the operand. scale_row, zero_row: the group's, where there is one for each group.
  double Element(int64_t index, int64_t zero_row) const;  // less its zero point
  double Scale(int64_t index, int64_t scale_row) const;

  // How many steps of k share a scale that their sum is multiplied by, 0 being all; -1 where there is none, or each
  // element is multiplied by its own.
  int64_t sum_steps() const { return sum_steps_; }
  bool scales_elements() const { return scale_ != nullptr && sum_steps_ < 0; }
  // Whether the product with its scale is a number of bf16, whatever both are.
  bool scales_exactly() const;

 private:
  double ValueAt(const Array& factor, int64_t index, int64_t row) const;

  const BufferDescriptor& x_;
  const Array* scale_ = nullptr;
  const Array* zero_ = nullptr;
  int64_t rows_ = 1, cols_ = 1;  // of all stored matrices on top of each other
  int64_t block_cols_ = 0;       // of column blocks
  int64_t sum_steps_ = -1;
};

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_DEQUANTIZER_H_
