// Describes what a custom call binds, and decodes its attributes and buffers. Checks what XLA's types can get wrong: the
// library checks the problem itself.
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
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// A description of a custom call: the names of what it binds, in order.
struct CustomCall {
  absl::string_view name;  // "grouped_gemm" for raggemm_grouped_gemm_v1_execute
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

// Sets the fields of a message of proto/config.proto by the message's own description. InvalidArgument, listing what is
// allowed: an unknown attribute, one of a wrong type, an unknown text of an enum, whose case is ignored.
absl::Status SetFields(const xla::ffi::Dictionary& attributes, google::protobuf::Message& config);

// Sets executor, isa and threads. InvalidArgument: an isa that is neither AUTO nor a name that this architecture knows,
// threads out of range.
absl::Status SetOptions(proto::GroupedGemmConfig::Executor::Value executor, absl::string_view isa, int64_t threads,
                        Options& options);

// Appends the indices in `names` of the entries of a comma list. InvalidArgument, with the attribute and what is allowed:
// an entry that is unknown or given twice.
absl::Status ParseList(absl::string_view attribute, absl::string_view list, absl::Span<const absl::string_view> names,
                       SlotIndices& indices);

// Sets what the attribute `names` says: a comma list of slot=word. The words point into `list`. InvalidArgument, with the
// entry and what is allowed: no slot of kMatrixSlots, kDimsSlots or kOperandSlots, one twice, or a word that is not
// [A-Za-z_][A-Za-z0-9_.]{0,63}.
absl::Status ParseOperandNames(absl::string_view list, OperandNames& names);

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

// Returns the size of a buffer, 0 if its shape says more than there can be. Nobody has checked the buffer yet, and XLA's
// own function would overflow.
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
