// Finds the zero point and the scale of each element of lhs or rhs.
#pragma once

#include <cstdint>

#include "raggemm/problem.h"

namespace raggemm {

// Returns where a layout stores the element that has this index in column blocks. Only kWordBlocks have another order.
int64_t StoredIndex(Layout layout, DType dtype, int64_t index);

class Dequantizer {
 public:
  Dequantizer(const GroupedGemmProblem& problem, bool is_lhs);

  // Returns an element minus its zero point. The index of an element of kWordBlocks is its index in column blocks.
  // zero_row selects the zero point if each group has one.
  double Element(int64_t index, int64_t zero_row) const;
  // Returns the scale of an element, or 1 without scales. scale_row selects the scale if each group has one.
  double Scale(int64_t index, int64_t scale_row) const;
  // Returns the index of an element's scale in the array of scales, or 0 without scales.
  int64_t ScaleIndex(int64_t index, int64_t scale_row) const;
  // The same for zero points.
  int64_t ZeroIndex(int64_t index, int64_t zero_row) const;

  // Returns the number of steps of k that share a scale of sums. 0: all steps. -1: there are no scales, or they
  // multiply elements.
  int64_t sum_steps() const { return sum_steps_; }
  bool scales_elements() const { return scale_ != nullptr && sum_steps_ < 0; }
  // Returns true if the product of an element and a scale is always a bf16 number.
  bool scales_exactly() const;

 private:
  // Returns the index of the scale or zero point of an element.
  int64_t IndexIn(const Array& values, int64_t index, int64_t row) const;

  const BufferDescriptor& x_;
  const Array* scale_ = nullptr;
  const Array* zero_ = nullptr;
  int64_t rows_ = 1, cols_ = 1;  // Size of all stored matrices, stacked vertically.
  int64_t block_cols_ = 0;  // Columns of a block of kColumnBlocks or kWordBlocks. 0: the operand has another layout.
  int64_t sum_steps_ = -1;
};

}  // namespace raggemm
