// The symbols of libraggemm_ffi.so: plain C functions that do not throw. The caller frees a char* result with
// raggemm_free. A null result means that memory ran out.
//
// XLA makes the frames of custom calls, so the handlers check no more of a frame than XLA's headers do. Attributes,
// types, shapes, sizes and buffers come from the program. If they are wrong, the error is INVALID_ARGUMENT, with the
// reason. out may be the same buffer as c. Any other overlap with out or the workspace is an error.
#pragma once

#include <stdint.h>

#include "xla/ffi/api/c_api.h"

// All other symbols are hidden.
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// The custom call raggemm_grouped_gemm_v1 binds, in order:
//
//   arguments   lhs, rhs, lhs_first, lhs_last, rhs_first, rhs_last, out_first, out_last, then the optional operands
//               that the attribute `operands` names; a dims array has shape [0] unless the attribute `ragged` names it
//   results     out, int64_workspace (a vector, see raggemm_v1_workspace_coefficients)
//   attributes  GroupedGemmConfig of proto/config.proto
//
// The instantiate handler checks the attributes when the program is compiled.
XLA_FFI_Error* raggemm_grouped_gemm_v1_instantiate(XLA_FFI_CallFrame* frame);
// The execute handler computes out. After an error out is untouched, unless the attribute on_error is NaN. The contents
// of the workspace may have changed.
XLA_FFI_Error* raggemm_grouped_gemm_v1_execute(XLA_FFI_CallFrame* frame);

// Sets the coefficients of the workspace size of raggemm_grouped_gemm_v1: *constant + *per_group * P*R*G elements, with
// P, R and G of include/raggemm/problem.h. `dims_arrays` is the number of dims arrays that are set, up to six.
void raggemm_v1_workspace_coefficients(int32_t dims_arrays, int64_t* constant, int64_t* per_group);

// The custom call raggemm_moe_mlp_v1 (include/raggemm/moe_mlp.h) binds, in order:
//
//   arguments   x, row_tokens, group_sizes, w_up, w_down, then the optional operands that `operands` names
//   results     out, then up and gate if `results` names them, then int64_workspace (a vector of
//               raggemm_v1_moe_mlp_workspace elements)
//   attributes  MoeMlpConfig of proto/config.proto
//
// The handlers behave like those of raggemm_grouped_gemm_v1, but after some errors out has changed (see MoeMlp).
XLA_FFI_Error* raggemm_moe_mlp_v1_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* raggemm_moe_mlp_v1_execute(XLA_FFI_CallFrame* frame);

// Returns the length of the workspace of raggemm_moe_mlp_v1, or -1 if no array can be that long. sums_tokens is 0 if
// out is f32, else 1. has_slots is 1 if row_slots is an operand, else 0. rounds_rows is 1 if lhs_block is given, else 0.
int64_t raggemm_v1_moe_mlp_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows, int64_t groups,
                                     int64_t sums_tokens, int64_t has_slots, int64_t rounds_rows);

// The custom call raggemm_moe_mlp_backward_v1 computes the gradients of raggemm_moe_mlp_v1. It binds, in order:
//
//   arguments   x, row_tokens, group_sizes, w_up, w_down, out_gradient, then the optional operands that `operands`
//               names, also up and gate
//   results     the gradients of the operands that `results` names, then int64_workspace (a vector of
//               raggemm_v1_moe_mlp_backward_workspace elements)
//   attributes  MoeMlpConfig of proto/config.proto
XLA_FFI_Error* raggemm_moe_mlp_backward_v1_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* raggemm_moe_mlp_backward_v1_execute(XLA_FFI_CallFrame* frame);
// Returns the length of the workspace of raggemm_moe_mlp_backward_v1, or -1 if no array can be that long. sums_tokens
// is 0 if the gradient of x is f32 or not wanted, else 1. sums_weights is 0 if all wanted gradients of weights and
// biases are f32, else 1. element_bytes is MoeMlpExtents::element_bytes.
int64_t raggemm_v1_moe_mlp_backward_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows,
                                              int64_t groups, int64_t element_bytes, int64_t sums_tokens,
                                              int64_t sums_weights);

// Returns the plan of a raggemm_grouped_gemm_v1 call as text, or the error message. `frame` is what the execute handler
// would get.
char* raggemm_plan_text(XLA_FFI_CallFrame* frame);

// Starts (`on` = 1) or ends (`on` = 0) a recording of plans. While any recording is on, the plans of all calls on all
// threads are kept.
void raggemm_record_plans(int32_t on);
// Returns and forgets the recorded plans. They are in the order of the calls, separated by blank lines. A call of
// raggemm_moe_mlp_v1 has the plans of its first piece of rows. A call of raggemm_moe_mlp_backward_v1 has none.
char* raggemm_take_plans(void);

// Returns the facts about the library on this machine, as a JSON object:
//
//   version, ffi_api   versions such as "0.1.0" and "0.3"
//   cpu                name of the CPU, empty if it is unknown (HostCpuBrand)
//   isas               instruction sets, the best one first: name (as in proto/config.proto), usable, missing (what
//                      this machine lacks, or null), kernels (names), probed_gflops (by arithmetic, if measured)
//   f32, bf16          defaults for f32, and for bf16 with bf16: arithmetic, isa, reason; if RAGGEMM_ISA is wrong, isa
//                      is null and reason is the error; if RAGGEMM_BF16_SUMS is wrong, bf16 is null
//   executors, bf16_sums, precisions
//                      names of proto/config.proto
//   max_threads        largest number of threads of a call
//   openmp_threads     threads of the executor OPENMP
//   environment        values of RAGGEMM_ISA, RAGGEMM_THREADS, RAGGEMM_EXECUTOR and RAGGEMM_BF16_SUMS, or null
//   kept_buffers       pack buffers that the process keeps for its next calls: count, bytes
//   error              errors of the environment, or null
char* raggemm_describe_json(void);

// Returns tables of the library as a JSON object, without probing this machine:
//
//   formats      rows of include/raggemm/format.h: name, numpy, bits, role, is_scale, expands_to
//   operands     optional operands of raggemm_grouped_gemm_v1 (include/raggemm/operands.h): name, axes
//   activations  rows of include/raggemm/activation.h: name, needs_gate, and the default of each number that the
//                activation takes: alpha, limit
//   calls        custom calls: name, and the names of their operands, ragged, optional_operands, results and
//                optional_results
char* raggemm_tables_json(void);

void raggemm_free(char* text);

// Returns the version, such as "0.1.0".
const char* raggemm_version(void);

// Sets the version of XLA's FFI that the handlers are built for. A runtime accepts its own major version, and its own
// or an earlier minor version.
void raggemm_ffi_version(int32_t* major, int32_t* minor);

#ifdef __cplusplus
}  // extern "C"
#endif
#pragma GCC visibility pop
