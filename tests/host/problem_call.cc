#include "tests/host/problem_call.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "raggemm/element.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"

namespace raggemm::host {
namespace {

void Append(absl::string_view name, std::string& list) { absl::StrAppend(&list, list.empty() ? "" : ",", name); }

std::vector<Buffer> ResultsOf(const Array& out, absl::Span<int64_t> workspace) {
  return {ToBuffer(out), {XLA_FFI_DataType_S64, {static_cast<int64_t>(workspace.size())}, workspace.data()}};
}

std::string SumsOf(const std::optional<ArithmeticId>& sums) {
  if (!sums) return "AUTO";
  const Arithmetic& row = kArithmetics[static_cast<int>(*sums)];
  return row.bf16_sums != nullptr ? row.bf16_sums : row.name;
}

std::string NameOf(Layout layout) {
  static constexpr const char* kNames[] = {"STRIDED", "PACKED", "COLUMN_BLOCKS", "WORD_BLOCKS"};
  return kNames[static_cast<int>(layout)];
}

void DescribeMatrix(const std::string& name, const BufferDescriptor& matrix, Attributes& attributes) {
  attributes[name + "_axis_boundary"] = matrix.axis_boundary;
  attributes[name + "_layout"] = NameOf(matrix.layout);
  if (matrix.is_trans) attributes[name + "_is_trans"] = true;
}

}  // namespace

Buffer ToBuffer(const Array& array) {
  const auto type = static_cast<XLA_FFI_DataType>(FormatOf(array.dtype).xla);
  return {type, {array.dims.begin(), array.dims.end()}, array.data};
}

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
  call.results = ResultsOf(problem.out, workspace);
  for (const MatrixSlot& slot : kMatrixSlots) {
    DescribeMatrix(std::string(slot.name), problem.*slot.operand, call.attributes);
  }
  call.attributes["ragged"] = ragged;
  call.attributes["operands"] = operands;
  call.attributes["bf16_sums"] = SumsOf(problem.bf16_sums);
  call.attributes["precision"] = std::string(kSplittings[static_cast<int>(problem.precision)].name);
  if (problem.activation) {
    call.attributes["activation"] = std::string(kActivations[static_cast<int>(*problem.activation)]);
  }
  if (problem.activation_alpha) call.attributes["activation_alpha"] = *problem.activation_alpha;
  if (problem.activation_limit) call.attributes["activation_limit"] = *problem.activation_limit;
  if (problem.lhs_block) call.attributes["lhs_block"] = *problem.lhs_block;
  return call;
}

Call MakeCall(const MoeMlpProblem& problem, absl::Span<int64_t> workspace) {
  Call call;
  for (const Array* x : {&problem.x, &problem.row_tokens, &problem.group_sizes, &problem.w_up, &problem.w_down}) {
    call.args.push_back(ToBuffer(*x));
  }
  std::string operands;
  for (const MlpSlot& slot : kMlpSlots) {
    const std::optional<Array>& operand = problem.*slot.operand;
    if (!operand.has_value()) continue;
    Append(slot.name, operands);
    call.args.push_back(ToBuffer(*operand));
  }
  call.results = ResultsOf(problem.out, workspace);
  static constexpr const char* kMerged[] = {"NONE", "HALVES", "INTERLEAVED"};
  call.attributes["activation"] = std::string(kActivations[static_cast<int>(problem.activation)]);
  call.attributes["weight_on"] = std::string(problem.weight_on == WeightOn::kInput ? "INPUT" : "OUTPUT");
  call.attributes["merged"] = std::string(kMerged[static_cast<int>(problem.merged)]);
  call.attributes["up_layout"] = NameOf(problem.up_layout);
  call.attributes["down_layout"] = NameOf(problem.down_layout);
  call.attributes["up_is_trans"] = problem.up_is_trans;
  call.attributes["down_is_trans"] = problem.down_is_trans;
  call.attributes["operands"] = operands;
  call.attributes["bf16_sums"] = SumsOf(problem.bf16_sums);
  if (problem.activation_alpha) call.attributes["activation_alpha"] = *problem.activation_alpha;
  if (problem.activation_limit) call.attributes["activation_limit"] = *problem.activation_limit;
  if (problem.lhs_block) call.attributes["lhs_block"] = *problem.lhs_block;
  return call;
}

int64_t WorkspaceElements(const GroupedGemmProblem& problem, WorkspaceCoefficientsFunction* coefficients) {
  int32_t dims_arrays = 0;
  int64_t groups = problem.out.dims.empty() ? 0 : problem.out.dims[0];  // Mode uniform has no dims arrays.
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
