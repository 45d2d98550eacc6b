// Computes element values of lhs or rhs, one at a time. Simple and slow.
#ifndef RAGGEMM_TESTS_ORACLE_DEQUANTIZER_H_
#define RAGGEMM_TESTS_ORACLE_DEQUANTIZER_H_

#include <cstdint>

#include "raggemm/problem.h"

namespace raggemm {

class Dequantizer {
 public:
  Dequantizer(const GroupedGemmProblem& problem, bool is_lhs);

  // Returns an element minus its zero point. zero_row is the index of a zero point per group.
  double Element(int64_t index, int64_t zero_row) const;
  // Returns the scale of an element. scale_row is the index of a scale per group.
  double Scale(int64_t index, int64_t scale_row) const;

  // Returns the number of steps of k whose sum has a common scale. 0: all steps. -1: there are no scales, or they
  // multiply elements.
  int64_t sum_steps() const { return sum_steps_; }
  bool scales_elements() const { return scale_ != nullptr && sum_steps_ < 0; }
  // Returns true if any element times any scale is a bf16 number.
  bool scales_exactly() const;

 private:
  double ValueAt(const Array& values, int64_t index, int64_t row) const;

  const BufferDescriptor& x_;
  const Array* scale_ = nullptr;
  const Array* zero_ = nullptr;
  int64_t rows_ = 1, cols_ = 1;  // All stored matrices, on top of each other.
  int64_t block_cols_ = 0;       // Columns of a column block, or 0.
  int64_t sum_steps_ = -1;
};

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_DEQUANTIZER_H_
