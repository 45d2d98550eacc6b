// The names of the custom call's operands, in the order in which frames list them, where a problem keeps them, and where
// it keeps what messages call them.
#ifndef RAGGEMM_FFI_OPERAND_SLOTS_H_
#define RAGGEMM_FFI_OPERAND_SLOTS_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "raggemm/problem.h"

namespace raggemm {

struct Slot {
  absl::string_view name;
  absl::string_view OperandNames::*word;
};
inline constexpr Slot kMatrixSlots[] = {
    {"lhs", &OperandNames::lhs}, {"rhs", &OperandNames::rhs}, {"out", &OperandNames::out}};

struct DimsSlot : Slot {
  BufferDescriptor GroupedGemmProblem::*operand;
  RaggedDims BufferDescriptor::*dims;
};
inline constexpr DimsSlot kDimsSlots[] = {
    {{"lhs_first", &OperandNames::lhs_first}, &GroupedGemmProblem::lhs, &BufferDescriptor::first_dims},
    {{"lhs_last", &OperandNames::lhs_last}, &GroupedGemmProblem::lhs, &BufferDescriptor::last_dims},
    {{"rhs_first", &OperandNames::rhs_first}, &GroupedGemmProblem::rhs, &BufferDescriptor::first_dims},
    {{"rhs_last", &OperandNames::rhs_last}, &GroupedGemmProblem::rhs, &BufferDescriptor::last_dims},
    {{"out_first", &OperandNames::out_first}, &GroupedGemmProblem::out, &BufferDescriptor::first_dims},
    {{"out_last", &OperandNames::out_last}, &GroupedGemmProblem::out, &BufferDescriptor::last_dims},
};

struct OperandSlot : Slot {
  std::optional<Array> GroupedGemmProblem::*operand;
};
inline constexpr OperandSlot kOperandSlots[] = {
    {{"c", &OperandNames::c}, &GroupedGemmProblem::c},
    {{"bias", &OperandNames::bias}, &GroupedGemmProblem::bias},
    {{"alpha", &OperandNames::alpha}, &GroupedGemmProblem::alpha},
    {{"beta", &OperandNames::beta}, &GroupedGemmProblem::beta},
    {{"group_offset", &OperandNames::group_offset}, &GroupedGemmProblem::group_offset},
};

}  // namespace raggemm

#endif  // RAGGEMM_FFI_OPERAND_SLOTS_H_
