#include "kernels/check/dtypes.h"

#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check/errors.h"
#include "kernels/check/problem.h"
#include "kernels/check/quantization.h"

namespace raggemm {
namespace {

// Returns the allowed types of an operand, as text for an error. Empty if the type is allowed.
std::string MustBe(const OperandSlot& slot, const Array& x, const GroupedGemmProblem& problem, DType compute) {
  const absl::string_view out = NameOf(problem.out.dtype), sums = NameOf(compute);
  switch (slot.types) {
    case Types::kOfOut:
      return x.dtype == problem.out.dtype ? "" : absl::StrCat("the ", out, " of ", problem.names.out);
    case Types::kCompute:
      return x.dtype == compute ? "" : absl::StrCat("the compute type ", sums);
    case Types::kScales:
      return IsScale(x.dtype) ? "" : "f32, bf16, f16, f8e8m0fnu or f8e4m3fn";
    case Types::kOfLhs:
    case Types::kOfRhs: {
      const bool of_lhs = slot.types == Types::kOfLhs;
      const DType own = of_lhs ? problem.lhs.dtype : problem.rhs.dtype;
      if (x.dtype == own && IsQuantized(own) && FormatOf(own).IsInteger()) return "";
      return absl::StrCat("an integer dtype, that of ", of_lhs ? problem.names.lhs : problem.names.rhs, ", which is ",
                          NameOf(own));
    }
    case Types::kUpToCompute:
      if (compute == DType::kS32) return x.dtype == compute ? "" : absl::StrCat("the compute type ", sums);
      if (IsMatrix(x.dtype) && (FormatOf(x.dtype).expands_to == DType::kF32 || compute == DType::kF64)) return "";
      return absl::StrCat(NamesOf(Role::kMatrix), ", and no wider than the compute type, which is ", sums);
    case Types::kSizes:
      break;
  }
  return FormatOf(x.dtype).role == Role::kSizes ? "" : NamesOf(Role::kSizes);
}

std::string MustBe(const MatrixSlot& slot, const GroupedGemmProblem& problem, const Products& products) {
  const bool is_out = slot.operand == &GroupedGemmProblem::out;
  const DType dtype = (problem.*slot.operand).dtype;
  if (IsMatrix(dtype) || (!is_out && IsQuantized(dtype))) return "";
  if (!is_out) return absl::StrCat(NamesOf(Role::kMatrix), ", or ", NamesOf(Role::kQuantized));
  const bool has_scales = problem.lhs_scale || problem.rhs_scale;
  if (dtype == products.compute && products.sums_integers && !has_scales) return "";
  return absl::StrCat(NamesOf(Role::kMatrix), ", or s32 if both operands are integers without scales and zeros; ",
                      problem.names.lhs, " is ", NameOf(problem.lhs.dtype), ", ", problem.names.rhs, " is ",
                      NameOf(problem.rhs.dtype));
}

absl::Status CheckActivation(const GroupedGemmProblem& problem, DType compute) {
  const OperandNames& names = problem.names;
  if (!problem.activation) {
    const absl::string_view given = problem.gate               ? names.gate
                                    : problem.activation_alpha ? "activation_alpha"
                                    : problem.activation_limit ? "activation_limit"
                                                               : "";
    return given.empty() ? absl::OkStatus() : Invalid(given, " is given without an activation");
  }
  const auto index = static_cast<int>(*problem.activation);
  if (index >= kActivationCount) return Invalid("activation: value ", index, ", must be less than ", kActivationCount);
  const char* const name = kActivations[index];
  if (compute != DType::kF32) {
    return Invalid("activation: ", name, " is for sums in f32; ", names.lhs, " is ", NameOf(problem.lhs.dtype), ", ",
                   names.rhs, " is ", NameOf(problem.rhs.dtype), ", ", names.out, " is ", NameOf(problem.out.dtype));
  }
  if (kNeedsGate[index] && !problem.gate) return Invalid("activation: ", name, " needs ", names.gate);
  return CheckNumbers(*problem.activation, problem.activation_alpha, problem.activation_limit);
}

}  // namespace

absl::Status CheckNumbers(Activation activation, std::optional<float> alpha, std::optional<float> limit) {
  const ActivationNumbers& defaults = kDefaultNumbers[static_cast<int>(activation)];
  for (const auto& [name, given, otherwise] :
       {std::tuple{"activation_alpha", alpha, defaults.alpha}, {"activation_limit", limit, defaults.limit}}) {
    if (!given) continue;
    const auto wrong = [&, name = name, given = *given](const auto&... must) {
      return Invalid(name, ": value ", given, must...);
    };
    if (otherwise == 0) return wrong(", but ", kActivations[static_cast<int>(activation)], " does not take it");
    if (!std::isfinite(*given) || *given <= 0) return wrong(", must be finite and positive");
  }
  return absl::OkStatus();
}

absl::Status CheckEnumerators(const GroupedGemmProblem& problem) {
  const auto check = [&](const Slot& slot, const Array& x) { return CheckFormat(problem.names.*slot.word, x); };
  for (const MatrixSlot& slot : kMatrixSlots) {
    if (absl::Status s = check(slot, problem.*slot.operand); !s.ok()) return s;
  }
  for (const OperandSlot& slot : kOperandSlots) {
    const std::optional<Array>& x = problem.*slot.operand;
    if (absl::Status s = x ? check(slot, *x) : absl::OkStatus(); !s.ok()) return s;
  }
  for (const DimsSlot& slot : kDimsSlots) {
    const RaggedDims& x = problem.*slot.operand.*slot.dims;
    if (absl::Status s = x ? check(slot, *x) : absl::OkStatus(); !s.ok()) return s;
  }
  const auto sums = problem.bf16_sums.value_or(ArithmeticId::kF32);
  if (absl::Status s = CheckEnumerator("bf16_sums", sums, std::size(kArithmetics)); !s.ok()) return s;
  return CheckEnumerator("precision", problem.precision, kPrecisions);
}

absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products) {
  const DType compute = products.compute;
  const auto wrong = [&](const Slot& slot, const Array& x, absl::string_view allowed) {
    return Invalid(problem.names.*slot.word, ": dtype is ", NameOf(x.dtype), ", must be ", allowed);
  };
  for (const MatrixSlot& slot : kMatrixSlots) {
    if (const std::string allowed = MustBe(slot, problem, products); !allowed.empty()) {
      return wrong(slot, problem.*slot.operand, allowed);
    }
  }
  if (problem.lhs_block) {
    if (const DType x = problem.lhs.dtype; x != DType::kF16 && x != DType::kBF16 && x != DType::kF32) {
      return Invalid("lhs_block: ", problem.names.lhs, " is ", NameOf(x), ", must be f16, bf16 or f32");
    }
    if (!HasCodes(problem.rhs.dtype)) {
      return Invalid("lhs_block: ", problem.names.rhs, " is ", NameOf(problem.rhs.dtype),
                     ", must be an integer of at most 8 bits or f4e2m1fn");
    }
    if (problem.out.dtype == DType::kF64 || !IsMatrix(problem.out.dtype)) {
      return Invalid("lhs_block: ", problem.names.out, " is ", NameOf(problem.out.dtype), ", must be f16, bf16 or f32");
    }
    if (problem.precision != Precision::kDefault) {
      return Invalid("lhs_block: precision is ", kSplittings[static_cast<int>(problem.precision)].name,
                     ", must be default");
    }
  }
  if (problem.lhs.dtype == DType::kF8E5M2 && problem.rhs.dtype == DType::kF8E5M2) {
    return Invalid(problem.names.lhs, " and ", problem.names.rhs,
                   " are both f8e5m2: one of them must have more digits");
  }
  const bool is_f32 = problem.lhs.dtype == DType::kF32 && problem.rhs.dtype == DType::kF32 && compute == DType::kF32;
  if (problem.precision != Precision::kDefault && !is_f32) {
    return Invalid("precision: ", kSplittings[static_cast<int>(problem.precision)].name, " is for ", problem.names.lhs,
                   " and ", problem.names.rhs, " of f32 and ", problem.names.out, " of f32, bf16 or f16; they are ",
                   NameOf(problem.lhs.dtype), ", ", NameOf(problem.rhs.dtype), " and ", NameOf(problem.out.dtype));
  }
  if (absl::Status s = CheckActivation(problem, compute); !s.ok()) return s;
  if (problem.beta && !problem.c) return Invalid(problem.names.beta, " is given without ", problem.names.c);
  for (const OperandSlot& slot : kOperandSlots) {
    const std::optional<Array>& x = problem.*slot.operand;
    if (!x) continue;
    if (const std::string allowed = MustBe(slot, *x, problem, compute); !allowed.empty()) {
      return wrong(slot, *x, allowed);
    }
  }
  for (const DimsSlot& slot : kDimsSlots) {
    const RaggedDims& x = problem.*slot.operand.*slot.dims;
    if (x && FormatOf(x->dtype).role != Role::kSizes) return wrong(slot, *x, NamesOf(Role::kSizes));
  }
  return absl::OkStatus();
}

}  // namespace raggemm
