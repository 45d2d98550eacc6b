// The products of an expert MLP, as problems of grouped_gemm.h.
#include <cstdint>
#include <optional>
#include <tuple>

#include "kernels/moe_mlp.h"

namespace raggemm {

GroupedGemmProblem CheckedMlp::Product(MlpProduct product, const MlpOperands& operands) const {
  GroupedGemmProblem gemm;
  gemm.bf16_sums = problem.bf16_sums;
  OperandNames& names = gemm.names;
  names.lhs_first = names.out_first = "group_sizes";
  const auto with = [&](const Array& weights, bool is_trans, Layout layout, const std::optional<Array>& scale,
                        const std::optional<Array>& zero) {
    static_cast<Array&>(gemm.rhs) = weights;
    gemm.rhs.is_trans = is_trans;
    gemm.rhs.layout = layout;
    gemm.rhs_scale = scale;
    gemm.rhs_zero = zero;
  };
  const bool of_gradient = product >= MlpProduct::kUpGradient;
  switch (product) {
    case MlpProduct::kUp:
    case MlpProduct::kUpGradient:
      with(problem.w_up, problem.up_is_trans != of_gradient, problem.up_layout, problem.up_scale, problem.up_zero);
      if (!of_gradient) gemm.bias = problem.b_up;
      std::tie(names.rhs, names.bias, names.rhs_scale, names.rhs_zero) =
          std::tuple{"w_up", "b_up", "up_scale", "up_zero"};
      break;
    case MlpProduct::kGate:
    case MlpProduct::kGateGradient:
      with(*problem.w_gate, problem.up_is_trans != of_gradient, problem.up_layout, problem.gate_scale,
           problem.gate_zero);
      if (!of_gradient) gemm.bias = problem.b_gate;
      std::tie(names.rhs, names.bias, names.rhs_scale, names.rhs_zero) =
          std::tuple{"w_gate", "b_gate", "gate_scale", "gate_zero"};
      break;
    case MlpProduct::kDown:
    case MlpProduct::kDownGradient:
      with(problem.w_down, problem.down_is_trans != of_gradient, problem.down_layout, problem.down_scale,
           problem.down_zero);
      if (!of_gradient) gemm.bias = problem.b_down;
      std::tie(names.rhs, names.bias, names.rhs_scale, names.rhs_zero) =
          std::tuple{"w_down", "b_down", "down_scale", "down_zero"};
      break;
  }
  const bool is_down = product == MlpProduct::kDown || product == MlpProduct::kDownGradient;
  const int64_t inner = is_down ? extents.intermediate : UpColumns();
  const bool to_inner = is_down == of_gradient;  // from rows as those of x to rows as those of u or a
  static_cast<Array&>(gemm.lhs) = {
      operands.lhs, TypeBeside(gemm.rhs), {operands.rows, to_inner ? extents.hidden : inner}};
  if (product == MlpProduct::kUp || product == MlpProduct::kGate) gemm.lhs.dtype = problem.x.dtype;
  static_cast<Array&>(gemm.out) = {operands.out, DType::kF32, {operands.rows, to_inner ? inner : extents.hidden}};
  if (operands.adds) gemm.c = gemm.out;
  names.lhs = to_inner ? "x" : "the activations";
  names.out = to_inner ? "the activations" : "out";
  return gemm;
}

}  // namespace raggemm
