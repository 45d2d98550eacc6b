// Decodes the attributes and buffers of custom calls. Checks only their form; the library checks the problem.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// The names of a custom call, of its operands and of its results, in order.
struct CustomCall {
  absl::string_view name;  // "grouped_gemm" for raggemm_grouped_gemm_v1_execute.
  absl::Span<const absl::string_view> operands;
  // The dims arrays. Those that the attribute `ragged` does not list have shape [0].
  absl::Span<const absl::string_view> ragged;
  // The operands that the attribute `operands` may list.
  absl::Span<const absl::string_view> optional_operands;
  absl::Span<const absl::string_view> results;
  // The results that the attribute `results` may list. The last result of every call, int64_workspace, is not listed.
  absl::Span<const absl::string_view> optional_results;

  size_t least_operands() const { return operands.size() + ragged.size(); }
  size_t least_results() const { return results.size() + 1; }
};

// The entries of the attributes `ragged`, `operands` and `results`, as indices into the names of a CustomCall.
using SlotIndices = absl::InlinedVector<size_t, 16>;
struct NamedSlots {
  SlotIndices ragged, operands, results;
};

// Sets the fields of `config`, a message of proto/config.proto. Returns InvalidArgument for an unknown attribute, a
// wrong type or an unknown enum value.
absl::Status SetFields(const xla::ffi::Dictionary& attributes, google::protobuf::Message& config);

// Sets `options`. InvalidArgument if `isa` is neither AUTO nor the name of an ISA of AllIsas, or `threads` is not in
// [0, kMaxThreads].
absl::Status SetOptions(proto::GroupedGemmConfig::Executor::Value executor, absl::string_view isa, int64_t threads,
                        Options& options);

// Looks up the entries of a comma-separated list in `names`, and appends their indices. InvalidArgument for an unknown
// or repeated entry.
absl::Status ParseList(absl::string_view attribute, absl::string_view list, absl::Span<const absl::string_view> names,
                       SlotIndices& indices);

// Parses a comma-separated list of slot=word. `names` then points into `list`. InvalidArgument for an unknown or
// repeated slot, or a word that does not match [A-Za-z_][A-Za-z0-9_.]{0,63}.
absl::Status ParseOperandNames(absl::string_view list, OperandNames& names);

// Reads the buffers of a call in order. Stops at the first error.
class BufferReader {
 public:
  BufferReader(const CustomCall& description, const NamedSlots& named, const xla::ffi::RemainingArgs& operands,
               const xla::ffi::RemainingRets& results);

  void ReadOperand(absl::string_view word, Array& array);
  void ReadResult(absl::string_view word, Array& array);
  // Skips a dims array that the attribute `ragged` does not name.
  void SkipOperand(absl::string_view word);
  // Reads the last result of a call, the workspace. Returns the first error of any buffer. InvalidArgument:
  //
  // - The call has too few operands or results, or not as many optional ones as its attribute names.
  // - A buffer has an element type that is no DType.
  // - A dims array that the attribute `ragged` does not name has another shape than [0].
  // - The workspace is not a vector of int64.
  absl::StatusOr<absl::Span<int64_t>> ReadWorkspace();

 private:
  xla::ffi::ErrorOr<xla::ffi::AnyBuffer> NextResult();
  void Read(absl::string_view word, const xla::ffi::ErrorOr<xla::ffi::AnyBuffer>& buffer, Array& array);

  const CustomCall& description_;
  const NamedSlots& named_;
  const xla::ffi::RemainingArgs& operands_;
  const xla::ffi::RemainingRets& results_;
  size_t next_operand_ = 0, next_result_ = 0;
  absl::Status status_;
};

// Returns the size of a buffer, or 0 if it overflows or the element type is unknown. An element smaller than a byte
// counts as one byte. XLA's own function does not check for overflow.
size_t BytesOf(const xla::ffi::AnyBuffer& buffer);

// Asks Linux to use huge pages for all whole 2 MiB pages in [data, data + bytes).
//
// XLA allocates results for each execution. The gradients of all experts are hundreds of megabytes, and with 4 KiB
// pages their page faults cost more time than the arithmetic. Gradients of one projection of 128 experts (bfloat16,
// 2048x768, 59 rows; two cores of Emerald Rapids, Debian's default of huge pages on request):
//
//                   page faults   time
//     4 KiB pages   98,307        115 ms
//     huge pages    716           55 ms
void AdviseHugePages(void* data, size_t bytes);

}  // namespace raggemm
