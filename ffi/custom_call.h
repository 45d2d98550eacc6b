// A custom call as data: what it binds, by position and by name, and where in its problem each of that goes. One
// decoder (decode.h) and one pair of handlers (handler.h, which says what struct runs a call) serve all of them, and
// tests walk them (tests/ffi/spoilt_call.h). A call is one of these, a message of its attributes in proto/config.proto,
// the struct (grouped_gemm.cc, moe_mlp.cc), and its symbols (handlers.h, exports.map).
#ifndef RAGGEMM_FFI_CUSTOM_CALL_H_
#define RAGGEMM_FFI_CUSTOM_CALL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"
#include "raggemm/problem.h"

namespace raggemm {

// An operand or a result.
struct Place {
  absl::string_view name;
  // What messages call it, with the words of the problem.
  absl::string_view (*word)(const void* problem);
  // Where it goes; made, where it is optional.
  Array& (*in)(void* problem);
};

struct CustomCall {
  absl::string_view name;  // of raggemm_<name>_v1_execute
  const google::protobuf::Descriptor* (*attributes)();
  // Bound in this order: what is always there; arrays of sizes, each of shape [0] unless the attribute `ragged` names
  // it; then, in the order of the attribute `operands`, what that names.
  absl::Span<const Place> operands, ragged, optional_operands;
  // What is always there; what the attribute `results` names; last the vector int64_workspace.
  absl::Span<const Place> results, optional_results;

  int64_t least_operands() const { return static_cast<int64_t>(operands.size() + ragged.size()); }
  int64_t most_operands() const { return least_operands() + static_cast<int64_t>(optional_operands.size()); }
  int64_t least_results() const { return static_cast<int64_t>(results.size()) + 1; }
  int64_t most_results() const { return least_results() + static_cast<int64_t>(optional_results.size()); }
};

// All of the plugin.
extern const CustomCall kGroupedGemmCall, kMoeMlpCall, kMoeMlpBackwardCall;
absl::Span<const CustomCall> CustomCalls();

// The place of each row of a table of slots: Row has name, and ToPlace<i> makes row i one.
template <template <size_t> class ToPlace, size_t kCount, size_t kFirst = 0>
constexpr auto PlacesOf() {
  return []<size_t... i>(std::index_sequence<i...>) {
    return std::array<Place, kCount>{
        Place{ToPlace<kFirst + i>::kName, ToPlace<kFirst + i>::Word, ToPlace<kFirst + i>::In}...};
  }
  (std::make_index_sequence<kCount>());
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_CUSTOM_CALL_H_
