// What a call computes, once its operands are trusted. The checks write it (problem.cc, operand_types.cc,
// quantization.cc, sizes.cc); everything else reads it.
#ifndef RAGGEMM_KERNELS_CHECK_CHECKED_H_
#define RAGGEMM_KERNELS_CHECK_CHECKED_H_

#include <cstdint>
#include <optional>

#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

// One of the six dims arrays, read and checked: [P,R,G] sizes, and for each group where it starts within its
// segment. Where both axes of an operand are ragged, first's starts are those of the blocks, in elements.
struct GroupExtents {
  const int64_t* sizes = nullptr;  // null where the array is not set
  const int64_t* starts = nullptr;
};

// An array that is indexed from its start.
struct Elements {
  const char* data = nullptr;  // null where it is not given
  DType dtype = DType::kF32;
};

// alpha, beta or bias: one row per group, per group and replica, or for all.
struct GroupValues {
  enum class Per : uint8_t { kCall, kGroup, kReplica };
  const char* data = nullptr;  // null where it is not given
  DType dtype = DType::kF32;
  Per per = Per::kCall;
};

// Scales or zero points. One for each group, or of blocks of the stored matrices on top of each other.
struct QuantParams {
  GroupValues values;
  bool per_block = false;
  int64_t row_block = 1, col_block = 1;  // of blocks: rows and columns that share a value
  int64_t rows = 0, cols = 0;            // of blocks: values; where there are fewer rows than blocks, they begin again
  bool applies_to_elements = false;      // which are multiplied before products are summed; else sums are
  bool is_given() const { return values.data != nullptr; }
};

// An operand: equal repetitions of rows x cols elements, one per segment, group or problem.
struct Operand {
  enum class Repeat : uint8_t { kSegment, kGroup, kProblem };
  char* data = nullptr;
  DType dtype = DType::kF32;
  DType product_type = DType::kF32;  // what is multiplied
  bool is_trans = false;
  bool packed = false;
  Repeat repeat = Repeat::kSegment;
  int64_t rows = 0;  // as stored, before is_trans; a ragged axis has its full extent
  int64_t cols = 0;
  int64_t block_cols = 0;  // of column blocks: how many columns one has
  GroupExtents first, last;
  QuantParams scale, zero;
  Elements row_index;  // of lhs, a row of out each: which of its rows; null where it has its own
};

// What is multiplied with what, as far as types decide it.
struct Products {
  DType compute = DType::kF32;                           // of the problem (ComputeType)
  bool sums_integers = false;                            // both operands are, and their products
  DType lhs = DType::kF32, rhs = DType::kF32;            // what their elements are before they are packed
  Precision precision = Precision::kDefault;             // of f32 with f32
  std::optional<ArithmeticId> bf16_sums = std::nullopt;  // the rule that the problem names
};

struct Checked {
  RaggedMode mode = RaggedMode::kUniform;
  int64_t problems = 1, replicas = 1, groups = 0;  // P, R, G
  int64_t local_groups = 0;
  Products products;
  Operand lhs, rhs, out;
  const char* c = nullptr;
  GroupValues alpha, beta, bias;
  std::optional<Activation> activation;
  Elements gate;  // as out lies
  // Whether sums are multiplied by scales, or are integers and out is not: each over sum_steps steps of k, 0 for all.
  bool scales_sums = false;
  int64_t sum_steps = 0;
  const int64_t* first_group = nullptr;  // [P,R], that is processed
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_CHECKED_H_
