#ifndef RAGGEMM_FFI_MATRIX_CONFIG_H_
#define RAGGEMM_FFI_MATRIX_CONFIG_H_

#include "proto/config.pb.h"
#include "raggemm/environment.h"
#include "raggemm/problem.h"

namespace raggemm {

// What a GroupedGemmConfig says of lhs, rhs and out, and of their sums.
inline void ApplyMatrixConfig(const proto::GroupedGemmConfig& config, GroupedGemmProblem& problem) {
  const auto layout = [](proto::GroupedGemmConfig::Layout value) {
    return static_cast<Layout>(value);  // the numbers are the same
  };
  problem.lhs.is_trans = config.lhs_is_trans();
  problem.rhs.is_trans = config.rhs_is_trans();
  problem.lhs.axis_boundary = config.lhs_axis_boundary();
  problem.rhs.axis_boundary = config.rhs_axis_boundary();
  problem.out.axis_boundary = config.out_axis_boundary();
  problem.lhs.layout = layout(config.lhs_layout());
  problem.rhs.layout = layout(config.rhs_layout());
  problem.out.layout = layout(config.out_layout());
  problem.bf16_sums = Bf16SumsOf(proto::GroupedGemmConfig::Bf16Sums::Value_Name(config.bf16_sums()));  // AUTO: none
  problem.precision = PrecisionOf(proto::GroupedGemmConfig::Precision::Value_Name(config.precision())).value();
  if (config.has_activation()) problem.activation = static_cast<Activation>(config.activation());  // the same numbers
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_MATRIX_CONFIG_H_
