// Tables of the operands of a grouped GEMM, in the order in which the custom call takes them.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "raggemm/format.h"
#include "raggemm/problem.h"

namespace raggemm {

// The names of an operand: in the custom call (`name`), and in error messages (`word`).
struct Slot {
  absl::string_view name;
  absl::string_view OperandNames::*word;
};

struct MatrixSlot : Slot {
  BufferDescriptor GroupedGemmProblem::*operand;
};
inline constexpr MatrixSlot kMatrixSlots[] = {
    {{"lhs", &OperandNames::lhs}, &GroupedGemmProblem::lhs},
    {{"rhs", &OperandNames::rhs}, &GroupedGemmProblem::rhs},
    {{"out", &OperandNames::out}, &GroupedGemmProblem::out},
};

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

// Types that an optional operand may have.
enum class Types : uint8_t {
  kOfOut,
  kCompute,      // The compute type (problem.h).
  kUpToCompute,  // Matrix types that are no wider than the compute type. If the compute type is s32, only s32.
  kSizes,        // Formats of sizes (Role::kSizes).
  kScales,       // Formats of scales (IsScale).
  kOfLhs,        // Type of lhs, which must be a quantized integer.
  kOfRhs         // Type of rhs, which must be a quantized integer.
};

// Axes along which the values of an optional operand differ, as bits of a set. kByRow and kByColumn decide the shape:
//
//     kByRow and kByColumn  an array with the layout of out (c, gate)
//     only kByRow           one value for each row of out (row_index)
//     only kByColumn        N values for each group (bias). All groups have the same N.
//     neither               one value for each group, or for each replica (alpha, beta, group_offset)
//
// With ragged K, values do not differ by replica, because the replicas of a problem have one common result.
enum Axis : uint8_t { kByProblem = 1, kByReplica = 2, kByGroup = 4, kByRow = 8, kByColumn = 16 };

constexpr uint8_t SetOf(RaggedMode mode) { return static_cast<uint8_t>(1 << static_cast<int>(mode)); }
inline constexpr uint8_t kWithOneN =
    SetOf(RaggedMode::kRaggedM) | SetOf(RaggedMode::kRaggedK) | SetOf(RaggedMode::kUniform);
inline constexpr uint8_t kEveryMode = kWithOneN | SetOf(RaggedMode::kRaggedN) | SetOf(RaggedMode::kAllRagged);

struct OperandSlot : Slot {
  std::optional<Array> GroupedGemmProblem::*operand;
  Types types;
  uint8_t axes;   // Axes along which values differ. 0 for scales and zero points, because their shape decides.
  uint8_t modes;  // Allowed modes, as bits from SetOf.
};
inline constexpr uint8_t kPerGroup = kByProblem | kByReplica | kByGroup;
inline constexpr OperandSlot kOperandSlots[] = {
    {{"c", &OperandNames::c}, &GroupedGemmProblem::c, Types::kOfOut, kPerGroup | kByRow | kByColumn, kEveryMode},
    {{"bias", &OperandNames::bias}, &GroupedGemmProblem::bias, Types::kUpToCompute, kPerGroup | kByColumn, kWithOneN},
    {{"alpha", &OperandNames::alpha}, &GroupedGemmProblem::alpha, Types::kCompute, kPerGroup, kEveryMode},
    {{"beta", &OperandNames::beta}, &GroupedGemmProblem::beta, Types::kCompute, kPerGroup, kEveryMode},
    {{"group_offset", &OperandNames::group_offset},
     &GroupedGemmProblem::group_offset,
     Types::kSizes,
     kByProblem | kByReplica,
     kEveryMode},
    {{"lhs_scale", &OperandNames::lhs_scale}, &GroupedGemmProblem::lhs_scale, Types::kScales, 0, kEveryMode},
    {{"rhs_scale", &OperandNames::rhs_scale}, &GroupedGemmProblem::rhs_scale, Types::kScales, 0, kEveryMode},
    {{"lhs_zero", &OperandNames::lhs_zero}, &GroupedGemmProblem::lhs_zero, Types::kOfLhs, 0, kEveryMode},
    {{"rhs_zero", &OperandNames::rhs_zero}, &GroupedGemmProblem::rhs_zero, Types::kOfRhs, 0, kEveryMode},
    {{"gate", &OperandNames::gate},
     &GroupedGemmProblem::gate,
     Types::kUpToCompute,
     kPerGroup | kByRow | kByColumn,
     kEveryMode},
    {{"row_index", &OperandNames::row_index},
     &GroupedGemmProblem::row_index,
     Types::kSizes,
     kByProblem | kByReplica | kByRow,
     SetOf(RaggedMode::kRaggedM)},
};

struct QuantSlot {
  BufferDescriptor GroupedGemmProblem::*operand;
  std::optional<Array> GroupedGemmProblem::*scale;
  std::optional<Array> GroupedGemmProblem::*zero;
  absl::string_view OperandNames::*word;
  absl::string_view OperandNames::*scale_word;
  absl::string_view OperandNames::*zero_word;
};
inline constexpr QuantSlot kQuantSlots[] = {
    {&GroupedGemmProblem::lhs, &GroupedGemmProblem::lhs_scale, &GroupedGemmProblem::lhs_zero, &OperandNames::lhs,
     &OperandNames::lhs_scale, &OperandNames::lhs_zero},
    {&GroupedGemmProblem::rhs, &GroupedGemmProblem::rhs_scale, &GroupedGemmProblem::rhs_zero, &OperandNames::rhs,
     &OperandNames::rhs_scale, &OperandNames::rhs_zero},
};

// Returns the compute type (problem.h).
inline DType ComputeType(const GroupedGemmProblem& problem) {
  if (problem.out.dtype == DType::kS32) return DType::kS32;
  for (const MatrixSlot& slot : kMatrixSlots) {
    if (FormatOf((problem.*slot.operand).dtype).expands_to == DType::kF64) return DType::kF64;
  }
  return DType::kF32;
}

}  // namespace raggemm
