// The names of the custom call's arrays of sizes and optional operands, in the order in which frames list them, and
// where a problem keeps them.
#ifndef RAGGEMM_FFI_OPERAND_SLOTS_H_
#define RAGGEMM_FFI_OPERAND_SLOTS_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "raggemm/problem.h"

namespace raggemm {

struct DimsSlot {
  absl::string_view name;
  BufferDescriptor GroupedGemmProblem::*operand;
  RaggedDims BufferDescriptor::*dims;
};
inline constexpr DimsSlot kDimsSlots[] = {
    {"lhs_first", &GroupedGemmProblem::lhs, &BufferDescriptor::first_dims},
    {"lhs_last", &GroupedGemmProblem::lhs, &BufferDescriptor::last_dims},
    {"rhs_first", &GroupedGemmProblem::rhs, &BufferDescriptor::first_dims},
    {"rhs_last", &GroupedGemmProblem::rhs, &BufferDescriptor::last_dims},
    {"out_first", &GroupedGemmProblem::out, &BufferDescriptor::first_dims},
    {"out_last", &GroupedGemmProblem::out, &BufferDescriptor::last_dims},
};

struct OperandSlot {
  absl::string_view name;
  std::optional<Array> GroupedGemmProblem::*operand;
};
inline constexpr OperandSlot kOperandSlots[] = {
    {"c", &GroupedGemmProblem::c},
    {"bias", &GroupedGemmProblem::bias},
    {"alpha", &GroupedGemmProblem::alpha},
    {"beta", &GroupedGemmProblem::beta},
    {"group_offset", &GroupedGemmProblem::group_offset},
};

}  // namespace raggemm

#endif  // RAGGEMM_FFI_OPERAND_SLOTS_H_
