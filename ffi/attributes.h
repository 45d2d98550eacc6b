// A custom call's attributes as the message that declares them, one field each (proto/config.proto).
#ifndef RAGGEMM_FFI_ATTRIBUTES_H_
#define RAGGEMM_FFI_ATTRIBUTES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// By the message's own description. InvalidArgument, listing what is allowed: an unknown attribute, one of a wrong
// type, an unknown text of an enum, whose case is ignored.
absl::Status SetFields(const xla::ffi::Dictionary& attributes, google::protobuf::Message& config);

// An attribute that is a text, or absent: XLA's error for that ends the process where memory is short.
absl::string_view TextOf(const xla::ffi::Dictionary& attributes, std::string_view name);

// InvalidArgument: threads out of range.
absl::StatusOr<Options> OptionsOf(proto::GroupedGemmConfig::Executor::Value executor,
                                  proto::GroupedGemmConfig::Isa::Value isa, int64_t threads);

template <typename Slot>
using SlotList = absl::InlinedVector<const Slot*, 16>;

// The slots that a comma list names, in its order.
template <typename Slot>
absl::Status ParseList(absl::string_view attribute, absl::string_view list, absl::Span<const Slot> slots,
                       SlotList<Slot>& named) {
  if (list.empty()) return absl::OkStatus();
  for (absl::string_view name : absl::StrSplit(list, ',')) {
    const auto slot = std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.name == name; });
    if (slot == slots.end()) {
      const auto append_name = [](std::string* out, const Slot& s) { absl::StrAppend(out, s.name); };
      return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, ": unknown entry \"", name,
                                                     "\"; allowed: ", absl::StrJoin(slots, ", ", append_name)));
    }
    if (std::find(named.begin(), named.end(), slot) != named.end()) {
      return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, ": \"", name, "\" is given twice"));
    }
    named.push_back(slot);
  }
  return absl::OkStatus();
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_ATTRIBUTES_H_
