// The checked operands of a call. The other files of this folder write them. All other code reads and trusts them.
#ifndef RAGGEMM_KERNELS_CHECK_CHECKED_H_
#define RAGGEMM_KERNELS_CHECK_CHECKED_H_

#include <cstdint>
#include <optional>

#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

// The sizes of groups along one axis of an operand: a dims array, read into the workspace. Null if the array is not
// set.
struct GroupExtents {
  const int64_t* sizes = nullptr;  // [P,R,G]
  // Start of each group within its segment. If both axes of an operand are ragged, the starts of its first axis are
  // offsets of the groups in elements.
  const int64_t* starts = nullptr;
};

// An optional array. Null if it is not given.
struct Elements {
  const char* data = nullptr;
  DType dtype = DType::kF32;
};

// An optional operand with one row for the call, for each group, or for each group of each replica: alpha, beta, bias,
// scales or zero points. Null if it is not given.
struct GroupValues {
  enum class Per : uint8_t { kCall, kGroup, kReplica };
  const char* data = nullptr;
  DType dtype = DType::kF32;
  Per per = Per::kCall;
};

// The scales or the zero points of an operand. There is one value for each group, or one for each block of the stored
// matrices. These lie one below the other.
struct QuantParams {
  GroupValues values;
  bool per_block = false;
  int64_t row_block = 1, col_block = 1;  // Rows and columns of a block.
  // Rows and columns of the array of values. If it has fewer rows than there are blocks, its rows repeat.
  int64_t rows = 0, cols = 0;
  bool applies_to_elements = false;  // True: a scale multiplies each element. False: it multiplies the sum.
  bool is_given() const { return values.data != nullptr; }
};

// A matrix operand: lhs, rhs or out. It repeats rows x cols elements for each segment, group or problem.
struct Operand {
  enum class Repeat : uint8_t { kSegment, kGroup, kProblem };
  char* data = nullptr;
  DType dtype = DType::kF32;
  DType product_type = DType::kF32;  // Type of the elements when they are multiplied.
  bool is_trans = false;
  bool packed = false;
  Repeat repeat = Repeat::kSegment;
  int64_t rows = 0;  // Stored rows, before is_trans. A ragged axis has its full extent.
  int64_t cols = 0;
  int64_t block_cols = 0;  // Columns of a column block. 0: rhs is not in column blocks.
  GroupExtents first, last;
  QuantParams scale, zero;
  Elements row_index;  // lhs only: the row of lhs for each row of out. Null: rows have their own number.
};

// The types of products and sums.
struct Products {
  DType compute = DType::kF32;                           // ComputeType of the problem.
  bool sums_integers = false;                            // True if integers are multiplied and summed in s32.
  DType lhs = DType::kF32, rhs = DType::kF32;            // Product types of both operands.
  Precision precision = Precision::kDefault;             // Precision of f32 with f32.
  std::optional<ArithmeticId> bf16_sums = std::nullopt;  // The rule that the problem names.
};

// A call with checked operands.
struct Checked {
  RaggedMode mode = RaggedMode::kUniform;
  int64_t problems = 1, replicas = 1, groups = 0;  // P, R, G
  int64_t local_groups = 0;
  Products products;
  Operand lhs, rhs, out;
  const char* c = nullptr;
  GroupValues alpha, beta, bias;
  std::optional<Activation> activation;
  Elements gate;  // In the layout of out.
  // True if scales multiply sums, or if s32 sums become floats.
  bool scales_sums = false;
  int64_t sum_steps = 0;                 // Steps of k of each such sum. 0: all steps.
  const int64_t* first_group = nullptr;  // [P,R] First processed group.
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_CHECKED_H_
