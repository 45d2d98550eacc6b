#include "ffi/host/problem_call.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "ffi/operand_slots.h"
#include "kernels/element.h"

namespace raggemm::host {
namespace {

XLA_FFI_DataType ToXla(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return XLA_FFI_DataType_F16;
    case DType::kBF16:
      return XLA_FFI_DataType_BF16;
    case DType::kF32:
      return XLA_FFI_DataType_F32;
    case DType::kF64:
      return XLA_FFI_DataType_F64;
    case DType::kS32:
      return XLA_FFI_DataType_S32;
    case DType::kS64:
      return XLA_FFI_DataType_S64;
    case DType::kU32:
      return XLA_FFI_DataType_U32;
  }
  return XLA_FFI_DataType_INVALID;
}

Buffer ToBuffer(const Array& array) { return {ToXla(array.dtype), {array.dims.begin(), array.dims.end()}, array.data}; }

void Append(absl::string_view name, std::string& list) { absl::StrAppend(&list, list.empty() ? "" : ",", name); }

void DescribeMatrix(const std::string& name, const BufferDescriptor& matrix, Attributes& attributes) {
  attributes[name + "_axis_boundary"] = matrix.axis_boundary;
  attributes[name + "_layout"] = std::string(matrix.layout == Layout::kPacked ? "PACKED" : "STRIDED");
  if (matrix.is_trans) attributes[name + "_is_trans"] = true;
}

}  // namespace

Call MakeCall(const GroupedGemmProblem& problem, absl::Span<int64_t> workspace) {
  Call call;
  call.args = {ToBuffer(problem.lhs), ToBuffer(problem.rhs)};
  std::string ragged;
  for (const DimsSlot& slot : kDimsSlots) {
    const RaggedDims& dims = problem.*slot.operand.*slot.dims;
    if (dims.has_value()) Append(slot.name, ragged);
    call.args.push_back(dims.has_value() ? ToBuffer(*dims) : Buffer{XLA_FFI_DataType_S32, {0}, nullptr});
  }
  std::string operands;
  for (const OperandSlot& slot : kOperandSlots) {
    const std::optional<Array>& operand = problem.*slot.operand;
    if (!operand.has_value()) continue;
    Append(slot.name, operands);
    call.args.push_back(ToBuffer(*operand));
  }
  call.results = {ToBuffer(problem.out),
                  {XLA_FFI_DataType_S64, {static_cast<int64_t>(workspace.size())}, workspace.data()}};
  DescribeMatrix("lhs", problem.lhs, call.attributes);
  DescribeMatrix("rhs", problem.rhs, call.attributes);
  DescribeMatrix("out", problem.out, call.attributes);
  call.attributes["ragged"] = ragged;
  call.attributes["operands"] = operands;
  return call;
}

int64_t WorkspaceElements(const GroupedGemmProblem& problem, WorkspaceCoefficientsFunction* coefficients) {
  int32_t dims_arrays = 0;
  int64_t groups = problem.out.dims.empty() ? 0 : problem.out.dims[0];  // of uniform
  for (const DimsSlot& slot : kDimsSlots) {
    const RaggedDims& dims = problem.*slot.operand.*slot.dims;
    if (!dims.has_value()) continue;
    ++dims_arrays;
    groups = ElementCount(*dims);
  }
  int64_t constant, per_group;
  coefficients(dims_arrays, &constant, &per_group);
  return constant + per_group * groups;
}

}  // namespace raggemm::host
