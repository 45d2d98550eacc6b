// Reads a custom call's attributes into the message that declares them (proto/config.proto), and what that message has
// as text.
#ifndef RAGGEMM_FFI_ATTRIBUTES_H_
#define RAGGEMM_FFI_ATTRIBUTES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ffi/decode.h"
#include "google/protobuf/message.h"
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// Sets the fields by the message's own description. InvalidArgument, listing what is allowed: an unknown attribute, one
// of a wrong type, an unknown text of an enum, whose case is ignored.
absl::Status SetFields(const xla::ffi::Dictionary& attributes, google::protobuf::Message& config);

// InvalidArgument: an isa that is neither AUTO nor a name that this architecture knows, threads out of range.
absl::StatusOr<Options> OptionsOf(proto::GroupedGemmConfig::Executor::Value executor, absl::string_view isa,
                                  int64_t threads);

// Appends the indices in `names` of the entries of a comma list. InvalidArgument, with the attribute and what is allowed:
// an entry that is unknown or given twice.
absl::Status ParseList(absl::string_view attribute, absl::string_view list, absl::Span<const absl::string_view> names,
                       SlotIndices& indices);

// Parses the attribute `names`: a comma list of slot=word; slots that it does not have keep their own names. The words
// point into `list`. InvalidArgument, with the entry and what is allowed: no slot of kMatrixSlots, kDimsSlots or
// kOperandSlots, one twice, or a word that is not [A-Za-z_][A-Za-z0-9_.]{0,63}.
absl::StatusOr<OperandNames> ParseOperandNames(absl::string_view list);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_ATTRIBUTES_H_
