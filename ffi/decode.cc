#include "ffi/decode.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "ffi/attributes.h"
#include "ffi/buffers.h"
#include "ffi/matrix_config.h"
#include "ffi/operand_names.h"
#include "proto/config.pb.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using proto::GroupedGemmConfig;

struct Attributes {
  GroupedGemmConfig config;
  Options options;
  SlotList<DimsSlot> ragged;
  SlotList<OperandSlot> operands;
  OperandNames names;
};

absl::StatusOr<Attributes> DecodeAttributes(const ffi::Dictionary& dictionary) {
  Attributes decoded;
  GroupedGemmConfig& config = decoded.config;
  if (absl::Status status = SetFields(dictionary, config); !status.ok()) return status;
  const absl::StatusOr<Options> options = OptionsOf(config.executor(), config.isa(), config.threads());
  if (!options.ok()) return options.status();
  decoded.options = *options;
  for (const absl::Status& status :
       {ParseList<DimsSlot>("ragged", config.ragged(), kDimsSlots, decoded.ragged),
        ParseList<OperandSlot>("operands", config.operands(), kOperandSlots, decoded.operands)}) {
    if (!status.ok()) return status;
  }
  // Of the dictionary's own text, which is there for the whole call.
  const absl::StatusOr<OperandNames> names = ParseOperandNames(TextOf(dictionary, "names"));
  if (!names.ok()) return names.status();
  decoded.names = *names;
  return decoded;
}

absl::Status DecodeMatrix(absl::string_view name, const ffi::AnyBuffer& buffer, BufferDescriptor& matrix) {
  const absl::StatusOr<Array> array = ToArray(name, buffer);
  if (!array.ok()) return array.status();
  static_cast<Array&>(matrix) = *array;
  return absl::OkStatus();
}

absl::Status DecodeDims(const BoundCall& call, const Attributes& attributes, GroupedGemmProblem& problem) {
  const auto& set = attributes.ragged;
  for (size_t i = 0; i < call.dims.size(); ++i) {
    const DimsSlot& slot = kDimsSlots[i];
    const ffi::AnyBuffer& buffer = call.dims[i];
    if (std::find(set.begin(), set.end(), &slot) != set.end()) {
      const absl::StatusOr<Array> dims = ToArray(problem.names.*slot.word, buffer);
      if (!dims.ok()) return dims.status();
      problem.*slot.operand.*slot.dims = *dims;
    } else if (const auto shape = DimsOf(buffer); shape.size() != 1 || shape[0] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(problem.names.*slot.word, ": not named by the attribute ragged (\"", attributes.config.ragged(),
                       "\"), so its shape must be [0], got [", absl::StrJoin(shape, ","), "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status DecodeOperands(const ffi::RemainingArgs& operands, const Attributes& attributes,
                            GroupedGemmProblem& problem) {
  const auto& named = attributes.operands;
  if (named.size() != operands.size()) {
    return absl::InvalidArgumentError(absl::StrCat("attribute operands (\"", attributes.config.operands(), "\") names ",
                                                   named.size(), " optional operands, got ", operands.size()));
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const OperandSlot& slot = *named[i];
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = operands.get<ffi::AnyBuffer>(i);
    const absl::string_view name = problem.names.*slot.word;
    if (buffer.has_error()) return absl::InvalidArgumentError(absl::StrCat(name, ": expected a buffer"));
    const absl::StatusOr<Array> array = ToArray(name, *buffer);
    if (!array.ok()) return array.status();
    problem.*slot.operand = *array;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateAttributes(const ffi::Dictionary& attributes) { return DecodeAttributes(attributes).status(); }

absl::StatusOr<DecodedCall> DecodeCall(BoundCall call) {
  const absl::StatusOr<Attributes> attributes = DecodeAttributes(call.attributes);
  if (!attributes.ok()) return attributes.status();
  DecodedCall decoded;
  GroupedGemmProblem& problem = decoded.problem;
  const OperandNames& names = problem.names = attributes->names;
  for (const absl::Status& status :
       {DecodeMatrix(names.lhs, call.lhs, problem.lhs), DecodeMatrix(names.rhs, call.rhs, problem.rhs),
        DecodeMatrix(names.out, *call.out, problem.out), DecodeDims(call, *attributes, problem),
        DecodeOperands(call.operands, *attributes, problem)}) {
    if (!status.ok()) return status;
  }
  const absl::StatusOr<absl::Span<int64_t>> workspace = DecodeWorkspace(*call.workspace);
  if (!workspace.ok()) return workspace.status();
  decoded.workspace = *workspace;
  ApplyMatrixConfig(attributes->config, problem);
  decoded.options = attributes->options;
  decoded.on_error = attributes->config.on_error();
  return decoded;
}

ffi::Error ToFfiError(const absl::Status& status) {
  // The two sets of codes are the same numbers, by XLA's definition.
  return status.ok() ? ffi::Error::Success()
                     : ffi::Error(static_cast<ffi::ErrorCode>(status.code()), std::string(status.message()));
}

}  // namespace raggemm
