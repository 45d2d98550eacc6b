// The symbols of libraggemm_ffi.so. All are plain C; nothing throws across them. Texts returned are the caller's, to
// be freed with raggemm_free; they are null where there is no memory for them.
//
// The custom call raggemm_grouped_gemm_v1 binds, in order:
//   arguments   lhs, rhs, lhs_first, lhs_last, rhs_first, rhs_last, out_first, out_last, then the optional operands
//               named by the attribute `operands`; an array of sizes not named by the attribute `ragged` has shape [0]
//   results     out, int64_workspace (a vector, see raggemm_v1_workspace_coefficients)
//   attributes  proto/config.proto
//
// The frame itself is XLA's, and no more of it is checked than XLA's headers do. Attributes, types, shapes, sizes and
// buffers come from the program: a call that is wrong in them is refused with INVALID_ARGUMENT, which says what is
// wrong. out may be c, from its start; anything else that overlaps out or the workspace is an error, operands that are
// only read may overlap.
#ifndef RAGGEMM_FFI_HANDLERS_H_
#define RAGGEMM_FFI_HANDLERS_H_

#include <stdint.h>

#include "xla/ffi/api/c_api.h"

// The rest of the library is hidden.
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// Validates the attributes, so that a wrong one fails when the program is compiled. Keeps no state.
XLA_FFI_Error* raggemm_grouped_gemm_v1_instantiate(XLA_FFI_CallFrame* frame);

// Computes. A bad call leaves out untouched, but where the attribute on_error says NaN; the workspace may change.
XLA_FFI_Error* raggemm_grouped_gemm_v1_execute(XLA_FFI_CallFrame* frame);

// The workspace has *constant + *per_group * P*R*G elements, where `dims_arrays` of the six arrays are set.
void raggemm_v1_workspace_coefficients(int32_t dims_arrays, int64_t* constant, int64_t* per_group);

// The custom call raggemm_moe_mlp_v1 (include/raggemm/moe_mlp.h), likewise. It binds, in order:
//   arguments   x, row_tokens, group_sizes, w_up, w_down, then the optional operands named by the attribute `operands`
//   results     out, those named by the attribute `results`: up, gate; int64_workspace (a vector, of
//               raggemm_v1_moe_mlp_workspace elements)
//   attributes  proto/config.proto, MoeMlpConfig
XLA_FFI_Error* raggemm_moe_mlp_v1_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* raggemm_moe_mlp_v1_execute(XLA_FFI_CallFrame* frame);

// Returns the length of the workspace, -1 if there is no such array: T tokens of H features, I intermediate features,
// M sorted rows, G group sizes. sums_tokens is 0 if out is f32, else 1. has_slots is 1 if row_slots is an operand,
// else 0.
int64_t raggemm_v1_moe_mlp_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows, int64_t groups,
                                     int64_t sums_tokens, int64_t has_slots);

// The custom call raggemm_moe_mlp_backward_v1, its gradients, likewise: out_gradient follows w_down, up and gate may be
// among the operands, and results are gradients of the operands that the attribute `results` names, then the workspace.
XLA_FFI_Error* raggemm_moe_mlp_backward_v1_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* raggemm_moe_mlp_backward_v1_execute(XLA_FFI_CallFrame* frame);
// sums_tokens is 0 if the gradient of x is f32 or no result, else 1. sums_weights is 0 if all gradients of weights and
// biases that are results are f32, else 1. element_bytes: see MoeMlpExtents.
int64_t raggemm_v1_moe_mlp_backward_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows,
                                              int64_t groups, int64_t element_bytes, int64_t sums_tokens,
                                              int64_t sums_weights);

// How the call of raggemm_grouped_gemm_v1 that an execute frame describes would be computed, as text; or the text of
// its error.
char* raggemm_plan_text(XLA_FFI_CallFrame* frame);

// From raggemm_record_plans(1) to its raggemm_record_plans(0) the plans of all calls that are executed, on any thread,
// are kept; pairs may be nested. raggemm_take_plans gives their texts, as of raggemm_plan_text, in the order of the
// calls, a blank line between two, and forgets them. Of raggemm_moe_mlp_v1 they are those of its products in its first
// piece of rows. While nobody records a call pays one relaxed atomic load.
void raggemm_record_plans(int32_t on);
char* raggemm_take_plans(void);

// What this is and how it computes here, as a JSON object:
//   version, ffi_api   as in "0.1.0", "0.3": the latter as raggemm_ffi_version has it
//   cpu                as the CPU names itself
//   isas               the best first: name (as in proto/config.proto), usable, missing (what it lacks here, or null),
//                      kernels (their names), probed_gflops (by arithmetic, those that were measured)
//   f32, bf16          what computes f32, and bf16 with bf16, for calls that do not say it: arithmetic, isa, and the
//                      reason; isa null, and the error, where there is none
//   executors, bf16_sums, precisions
//                      names, as in proto/config.proto
//   max_threads        that a call may ask for
//   openmp_threads     that the executor OPENMP has
//   environment        RAGGEMM_ISA, RAGGEMM_THREADS, RAGGEMM_EXECUTOR, RAGGEMM_BF16_SUMS as they
//                      were read, or null
//   kept_buffers       pack buffers of this process that its next calls will use: count, bytes
//   error              what is wrong with these, or null
char* raggemm_describe_json(void);

// Returns tables of the library as a JSON object, without any measurement:
//   formats      name, numpy, bits, role, is_scale, expands_to, as include/raggemm/format.h calls them
//   operands     the optional ones of raggemm_grouped_gemm_v1: name, axes, as include/raggemm/operands.h calls them
//   activations  names
//   calls        the custom calls, each with its name and the names of what it binds: operands, ragged,
//                optional_operands, results, optional_results
char* raggemm_tables_json(void);

void raggemm_free(char* text);

// The version of the library, as in "0.1.0".
const char* raggemm_version(void);

// The version of XLA's FFI that the handlers are built for. A runtime takes those of its own major version and of no
// later minor version.
void raggemm_ffi_version(int32_t* major, int32_t* minor);

#ifdef __cplusplus
}  // extern "C"
#endif
#pragma GCC visibility pop

#endif  // RAGGEMM_FFI_HANDLERS_H_
