// A custom call's attributes as the message that declares them, one field each (proto/config.proto).
#ifndef RAGGEMM_FFI_ATTRIBUTES_H_
#define RAGGEMM_FFI_ATTRIBUTES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// Sets the fields by the message's own description. InvalidArgument, listing what is allowed: an unknown attribute, one
// of a wrong type, an unknown text of an enum, whose case is ignored.
absl::Status SetFields(const xla::ffi::Dictionary& attributes, google::protobuf::Message& config);

// An attribute that is a text, or absent: XLA's error for that ends the process where memory is short.
absl::string_view TextOf(const xla::ffi::Dictionary& attributes, std::string_view name);

// InvalidArgument: an isa that is neither AUTO nor a name that this architecture knows, threads out of range.
absl::StatusOr<Options> OptionsOf(proto::GroupedGemmConfig::Executor::Value executor, absl::string_view isa,
                                  int64_t threads);

// The attribute `names`: a comma list of slot=word; slots that it does not have keep their own names. The words point
// into `list`. InvalidArgument, with the entry and what is allowed: no slot of kMatrixSlots, kDimsSlots or
// kOperandSlots, one twice, or a word that is not [A-Za-z_][A-Za-z0-9_.]{0,63}.
absl::StatusOr<OperandNames> ParseOperandNames(absl::string_view list);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_ATTRIBUTES_H_
