// Describes what a custom call binds, and reads its buffers. Checks what XLA's types can get wrong: the library checks the
// problem itself.
#ifndef RAGGEMM_FFI_DECODE_H_
#define RAGGEMM_FFI_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// A description of a custom call: the names of what it binds, in order.
struct CustomCall {
  absl::string_view name;  // "grouped_gemm" for raggemm_grouped_gemm_v1_execute
  const google::protobuf::Descriptor* (*attributes)();
  // Operands: those of every call; arrays of sizes, each of shape [0] unless the attribute `ragged` names it; those that
  // the attribute `operands` names, in its order.
  absl::Span<const absl::string_view> operands, ragged, optional_operands;
  // Results: those of every call; those that the attribute `results` names; last the vector int64_workspace.
  absl::Span<const absl::string_view> results, optional_results;

  size_t least_operands() const { return operands.size() + ragged.size(); }
  size_t least_results() const { return results.size() + 1; }
};

// The entries of the attributes `ragged`, `operands` and `results`, as indices into the names of a description.
using SlotIndices = absl::InlinedVector<size_t, 16>;
struct NamedSlots {
  SlotIndices ragged, operands, results;
};

// Reads the operands and the results of a call in order. After an error it reads nothing more.
class BufferReader {
 public:
  BufferReader(const CustomCall& description, const NamedSlots& named, const xla::ffi::RemainingArgs& operands,
               const xla::ffi::RemainingRets& results);

  // Sets the array to the next operand or result, which errors call `word`.
  void ReadOperand(absl::string_view word, Array& array);
  void ReadResult(absl::string_view word, Array& array);
  // Checks that the next operand, an array of sizes that the attribute `ragged` does not name, has the shape [0].
  void SkipOperand(absl::string_view word);
  // Returns the last result, or the first error. InvalidArgument: too few operands or results; a number of optional ones
  // that is not the attribute's; an element type that is not one of ours; an array of sizes that is passed but not
  // named; a workspace that is no vector of int64.
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

// Returns 0 if the shape says more than there can be: nobody has checked the buffer yet, and XLA's own function would
// overflow.
size_t BytesOf(const xla::ffi::AnyBuffer& buffer);

// Asks for huge pages in the part of [data, data + bytes) that can have them. The bytes stay as they are.
//
// XLA allocates results anew for each execution, and the gradients of all experts are hundreds of megabytes: written in
// pages of 4 KiB they cost more time in page faults than in sums. The gradients of one projection of 128 experts
// (bfloat16, 2048x768, 59 rows): 98,307 faults and 115 ms without, 716 faults and 55 ms with (Emerald Rapids, two
// cores, huge pages on request as Debian has them).
void AdviseHugePages(void* data, size_t bytes);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_DECODE_H_
