#ifndef RAGGEMM_FFI_OPERAND_NAMES_H_
#define RAGGEMM_FFI_OPERAND_NAMES_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "raggemm/problem.h"

namespace raggemm {

// The attribute `names`: a comma list of slot=word; slots that it does not have keep their own names. The words point
// into `list`. InvalidArgument, with the entry and what is allowed: no slot of kMatrixSlots, kDimsSlots or
// kOperandSlots, one twice, or a word that is not [A-Za-z_][A-Za-z0-9_.]{0,63}.
absl::StatusOr<OperandNames> ParseOperandNames(absl::string_view list);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_OPERAND_NAMES_H_
