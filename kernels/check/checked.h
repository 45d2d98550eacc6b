// The checked operands of a call. Only the files of this folder write them.
#pragma once

#include <cstdint>
#include <optional>

#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

// The group sizes along one axis of an operand, in the workspace. Both pointers are null if the dims array is not set.
struct GroupExtents {
  const int64_t* sizes = nullptr;  // [P,R,G]
  // [P,R,G] Start of each group along the axis, counted within its replica. If both axes of the operand are ragged,
  // Operand::first.starts counts elements instead.
  const int64_t* starts = nullptr;
};

// An optional array. Null `data`: not given.
struct Elements {
  const char* data = nullptr;
  DType dtype = DType::kF32;
};

// An optional operand (alpha, beta, bias, scales or zero points) with one row for the call, for each group, or for each
// group of each replica.
struct GroupValues {
  enum class Per : uint8_t { kCall, kGroup, kReplica };
  const char* data = nullptr;
  DType dtype = DType::kF32;
  Per per = Per::kCall;
};

// The scales or the zero points of an operand. With per_block, each block of the stored matrices has one value, and the
// matrices are stacked along the rows. Otherwise each row of `values` has one value.
struct QuantParams {
  GroupValues values;
  bool per_block = false;
  int64_t row_block = 1, col_block = 1;  // Size of a block, in elements.
  // Size of the array of values. Its rows repeat if the stacked matrices have more rows of blocks.
  int64_t rows = 0, cols = 0;
  int64_t matrix_rows = 0;  // Rows of values for a matrix, if the values are in column blocks. 0: they are not.
  // Returns the position of the value at a row and column of the array of values.
  int64_t IndexOf(int64_t row, int64_t col) const {
    if (matrix_rows == 0) return row * cols + col;
    const int64_t blocks = (cols + kWordColumns - 1) / kWordColumns * (row / matrix_rows) + col / kWordColumns;
    return (blocks * matrix_rows + row % matrix_rows) * kWordColumns + col % kWordColumns;
  }
  // True: scales multiply elements. False: scales multiply sums. Always true for zero points, unless rows are rounded.
  bool applies_to_elements = false;
  bool is_given() const { return values.data != nullptr; }
};

// A matrix operand. `repeat` says whether there are rows x cols elements for each segment, group or problem.
struct Operand {
  enum class Repeat : uint8_t { kSegment, kGroup, kProblem };
  char* data = nullptr;
  DType dtype = DType::kF32;
  DType product_type = DType::kF32;  // Type in which the elements are multiplied.
  bool is_trans = false;
  bool packed = false;
  Repeat repeat = Repeat::kSegment;
  // Stored rows and columns, before transposing. A ragged axis has the extent of all groups together. With kAllRagged,
  // rows is the number of elements, and cols is 1.
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t block_cols = 0;  // Columns of a column block. 0: no column blocks.
  bool in_word_blocks = false;
  GroupExtents first, last;
  QuantParams scale, zero;
  Elements row_index;  // Only for lhs: the stored row of lhs for each row of out.
};

struct Products {
  DType compute = DType::kF32;  // Type in which the epilogue computes.
  bool sums_integers = false;   // True if integers are multiplied, and summed in s32.
  bool rounds_lhs = false;      // True if the rows of lhs are quantized inside the call.
  DType lhs = DType::kF32, rhs = DType::kF32;
  Precision precision = Precision::kDefault;
  std::optional<ArithmeticId> bf16_sums = std::nullopt;
};

struct Checked {
  RaggedMode mode = RaggedMode::kUniform;
  int64_t problems = 1, replicas = 1, groups = 0;  // P, R, G
  int64_t local_groups = 0;                        // G_local: processed groups of each problem.
  Products products;
  Operand lhs, rhs, out;
  const char* c = nullptr;
  GroupValues alpha, beta, bias;
  std::optional<Activation> activation;
  ActivationNumbers activation_numbers;
  Elements gate;  // Gate of the activation, in the layout of out.
  // True if scales multiply sums, or if s32 sums become floats.
  bool scales_sums = false;
  int64_t sum_steps = 0;                 // Steps of k that share a scale of sums. 0: all steps.
  const int64_t* first_group = nullptr;  // [P,R] Index of the first processed group.
  // Only for rounded rows (grouped_gemm.h): steps of k in a block of lhs, and in a stretch.
  int64_t lhs_block = 0, stretch = 0;
};

}  // namespace raggemm
