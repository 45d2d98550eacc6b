// Applies the messages of proto/config.proto to problems.
#pragma once

#include <initializer_list>
#include <utility>

#include "proto/config.pb.h"
#include "raggemm/environment.h"
#include "raggemm/moe_mlp.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"

namespace raggemm {

template <typename Ours, typename Theirs>
constexpr bool HaveSameNumbers(int size, std::initializer_list<std::pair<Ours, Theirs>> rows) {
  for (const auto& [ours, theirs] : rows) {
    if (static_cast<int>(ours) != static_cast<int>(theirs)) return false;
  }
  return static_cast<int>(rows.size()) == size;
}

static_assert(HaveSameNumbers<Activation, proto::Activation::Value>(
    proto::Activation::Value_ARRAYSIZE, {{Activation::kSilu, proto::Activation::SILU},
                                         {Activation::kGelu, proto::Activation::GELU},
                                         {Activation::kGeluTanh, proto::Activation::GELU_TANH},
                                         {Activation::kRelu, proto::Activation::RELU},
                                         {Activation::kQuickGelu, proto::Activation::QUICK_GELU},
                                         {Activation::kSwigluOai, proto::Activation::SWIGLU_OAI},
                                         {Activation::kRelu2, proto::Activation::RELU2},
                                         {Activation::kSwigluClamped, proto::Activation::SWIGLU_CLAMPED}}));
static_assert(HaveSameNumbers<Layout, proto::GroupedGemmConfig::Layout>(
    proto::GroupedGemmConfig::Layout_ARRAYSIZE, {{Layout::kStrided, proto::GroupedGemmConfig::STRIDED},
                                                 {Layout::kPacked, proto::GroupedGemmConfig::PACKED},
                                                 {Layout::kColumnBlocks, proto::GroupedGemmConfig::COLUMN_BLOCKS},
                                                 {Layout::kWordBlocks, proto::GroupedGemmConfig::WORD_BLOCKS}}));
static_assert(HaveSameNumbers<Executor, proto::GroupedGemmConfig::Executor::Value>(
    proto::GroupedGemmConfig::Executor::Value_ARRAYSIZE,
    {{Executor::kAuto, proto::GroupedGemmConfig::Executor::AUTO},
     {Executor::kOpenMp, proto::GroupedGemmConfig::Executor::OPENMP},
     {Executor::kPool, proto::GroupedGemmConfig::Executor::POOL},
     {Executor::kSerial, proto::GroupedGemmConfig::Executor::SERIAL}}));
static_assert(HaveSameNumbers<Precision, proto::GroupedGemmConfig::Precision::Value>(
    proto::GroupedGemmConfig::Precision::Value_ARRAYSIZE,
    {{Precision::kDefault, proto::GroupedGemmConfig::Precision::DEFAULT},
     {Precision::kBf16X3, proto::GroupedGemmConfig::Precision::BF16_X3},
     {Precision::kBf16X6, proto::GroupedGemmConfig::Precision::BF16_X6}}));
static_assert(HaveSameNumbers<Merged, proto::MoeMlpConfig::Merged::Value>(
    proto::MoeMlpConfig::Merged::Value_ARRAYSIZE, {{Merged::kNone, proto::MoeMlpConfig::Merged::NONE},
                                                   {Merged::kHalves, proto::MoeMlpConfig::Merged::HALVES},
                                                   {Merged::kInterleaved, proto::MoeMlpConfig::Merged::INTERLEAVED}}));
static_assert(HaveSameNumbers<WeightOn, proto::MoeMlpConfig::WeightOn::Value>(
    proto::MoeMlpConfig::WeightOn::Value_ARRAYSIZE, {{WeightOn::kOutput, proto::MoeMlpConfig::WeightOn::OUTPUT},
                                                     {WeightOn::kInput, proto::MoeMlpConfig::WeightOn::INPUT}}));

template <typename Config, typename Problem>
void ApplyNumbers(const Config& config, Problem& problem) {
  if (config.has_activation_alpha()) problem.activation_alpha = config.activation_alpha();
  if (config.has_activation_limit()) problem.activation_limit = config.activation_limit();
}

// Copies the fields of `config` to `problem`, except the options (executor, isa, threads), on_error and the lists of
// names.
inline void ApplyConfig(const proto::GroupedGemmConfig& config, GroupedGemmProblem& problem) {
  problem.lhs.is_trans = config.lhs_is_trans();
  problem.rhs.is_trans = config.rhs_is_trans();
  problem.lhs.axis_boundary = config.lhs_axis_boundary();
  problem.rhs.axis_boundary = config.rhs_axis_boundary();
  problem.out.axis_boundary = config.out_axis_boundary();
  problem.lhs.layout = static_cast<Layout>(config.lhs_layout());
  problem.rhs.layout = static_cast<Layout>(config.rhs_layout());
  problem.out.layout = static_cast<Layout>(config.out_layout());
  // AUTO is not the name of a rule, so Bf16SumsOf returns null.
  problem.bf16_sums = Bf16SumsOf(proto::GroupedGemmConfig::Bf16Sums::Value_Name(config.bf16_sums()));
  problem.precision = static_cast<Precision>(config.precision());
  if (config.has_activation()) problem.activation = static_cast<Activation>(config.activation());
  ApplyNumbers(config, problem);
  if (config.has_lhs_block()) problem.lhs_block = config.lhs_block();
}

inline void ApplyConfig(const proto::MoeMlpConfig& config, MoeMlpProblem& problem) {
  problem.activation = static_cast<Activation>(config.activation());
  problem.merged = static_cast<Merged>(config.merged());
  problem.weight_on = static_cast<WeightOn>(config.weight_on());
  problem.up_is_trans = config.up_is_trans();
  problem.down_is_trans = config.down_is_trans();
  problem.up_layout = static_cast<Layout>(config.up_layout());
  problem.down_layout = static_cast<Layout>(config.down_layout());
  problem.bf16_sums = Bf16SumsOf(proto::GroupedGemmConfig::Bf16Sums::Value_Name(config.bf16_sums()));
  ApplyNumbers(config, problem);
  if (config.has_lhs_block()) problem.lhs_block = config.lhs_block();
}

}  // namespace raggemm
