#include "tests/host/case_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "ffi/config.h"
#include "raggemm/element.h"
#include "raggemm/operands.h"
#include "tests/host/random_fill.h"
#include "tests/oracle/reference.h"
#include "tests/oracle/values.h"

namespace raggemm::host {
namespace {

using proto::GroupedGemmCase;

DType ToDType(GroupedGemmCase::DType dtype) { return FormatOfXla(dtype)->dtype; }
GroupedGemmCase::DType ToProto(DType dtype) { return static_cast<GroupedGemmCase::DType>(FormatOf(dtype).xla); }

bool Lists(absl::string_view comma_list, absl::string_view name) {
  const std::vector<absl::string_view> names = absl::StrSplit(comma_list, ',');
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Checks a list of names, separated by commas. Returns InvalidArgument if a name is not in `slots`. `list` is the
// config field, for the message.
template <typename Slots>
absl::Status CheckNames(absl::string_view list, absl::string_view names, const Slots& slots) {
  for (absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    if (std::none_of(std::begin(slots), std::end(slots), [&](const auto& slot) { return slot.name == name; })) {
      return absl::InvalidArgumentError(absl::StrCat("config.", list, ": unknown name ", name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExponents(const GroupedGemmCase& source) {
  constexpr int kLimit = 1000;
  for (const auto& [name, exponent] : {std::pair{"lhs", source.lhs().exponent()},
                                       {"rhs", source.rhs().exponent()},
                                       {"out", source.out().exponent()}}) {
    if (exponent < -kLimit || exponent > kLimit) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": exponent is ", exponent, ", must be from ", -kLimit, " to ", kLimit));
    }
  }
  return absl::OkStatus();
}

template <typename Values>
int64_t Sum(const Values& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

absl::Status StoreInteger(absl::string_view name, const Array& array, int64_t index, int64_t value) {
  // The machine is little-endian, so the first bytes of a wide integer are the narrower integer.
  std::memcpy(static_cast<char*>(array.data) + index * SizeOf(array.dtype), &value, SizeOf(array.dtype));
  if (ToInteger(array, index) == value) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": value ", value, " at index ", index, " does not fit ", NameOf(array.dtype)));
}

uint64_t FirstSeed(const GroupedGemmCase& source) { return static_cast<uint64_t>(source.seed()) << 8; }
constexpr uint64_t kMatrices = 2;

void FillWithNan(const Array& array) {
  if (array.data != nullptr) std::memset(array.data, 0xFF, BytesOf(array));
}

class Builder {
 public:
  Builder(const GroupedGemmCase& source, CaseProblem& made)
      : source_(source), arrays_(made.arrays), problem_(made.problem), seed_(FirstSeed(source) + kMatrices) {}

  absl::Status Build() {
    if (absl::Status status = CheckExponents(source_); !status.ok()) return status;
    static_cast<Array&>(problem_.lhs) = Add(source_.lhs());
    static_cast<Array&>(problem_.rhs) = Add(source_.rhs());
    static_cast<Array&>(problem_.out) = Add(source_.out());
    ApplyConfig(source_.config(), problem_);
    for (const absl::Status& status :
         {CheckNames("ragged", source_.config().ragged(), kDimsSlots),
          CheckNames("operands", source_.config().operands(), kOperandSlots), AddSizes(), AddOperands()}) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  Array Add(const GroupedGemmCase::Matrix& matrix) { return arrays_.Add(ToDType(matrix.dtype()), matrix.dims()); }

  absl::Status AddSizes() {
    const google::protobuf::RepeatedField<int64_t>* const given[] = {
        &source_.lhs().first_dims(), &source_.lhs().last_dims(),  &source_.rhs().first_dims(),
        &source_.rhs().last_dims(),  &source_.out().first_dims(), &source_.out().last_dims()};
    for (size_t i = 0; i < std::size(kDimsSlots); ++i) {
      const DimsSlot& slot = kDimsSlots[i];
      if (!Lists(source_.config().ragged(), slot.name)) {
        if (given[i]->empty()) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(slot.name, " has ", given[i]->size(), " values, but config.ragged does not name it"));
      }
      Dims shape(source_.group_shape());
      if (shape.empty()) shape.push_back(given[i]->size());
      const Array array = arrays_.Add(ToDType(source_.group_dtype()), shape);
      if (ElementCount(array) != given[i]->size()) {
        return absl::InvalidArgumentError(
            absl::StrCat(slot.name, " has ", given[i]->size(), " values, group_shape ", ElementCount(array)));
      }
      for (int g = 0; g < given[i]->size(); ++g) {
        if (absl::Status s = StoreInteger(slot.name, array, g, given[i]->Get(g)); !s.ok()) return s;
      }
      problem_.*slot.operand.*slot.dims = array;
    }
    return absl::OkStatus();
  }

  absl::Status AddOperands() {
    for (const OperandSlot& slot : kOperandSlots) {
      std::optional<Array>& operand = problem_.*slot.operand;
      const bool named = Lists(source_.config().operands(), slot.name);
      if (slot.types == Types::kOfOut) {
        if (named) FillRandom(operand.emplace(Add(source_.out())), seed_++);
        continue;
      }
      const auto* field = source_.GetDescriptor()->FindFieldByName(std::string(slot.name));
      const auto& reflection = *source_.GetReflection();
      if (named) {
        const auto& vector = static_cast<const GroupedGemmCase::Vector&>(reflection.GetMessage(source_, field));
        if (absl::Status s = AddVector(slot, vector, operand); !s.ok()) return s;
      } else if (reflection.HasField(source_, field)) {
        return absl::InvalidArgumentError(absl::StrCat(slot.name, " is given, but config.operands does not name it"));
      }
    }
    return absl::OkStatus();
  }

  DType DefaultOf(Types types) const {
    if (types == Types::kSizes) return DType::kS32;
    if (types == Types::kOfLhs) return problem_.lhs.dtype;
    if (types == Types::kOfRhs) return problem_.rhs.dtype;
    const DType compute = ComputeType(problem_);
    return types == Types::kCompute || compute == DType::kS32 ? compute : DType::kF32;
  }

  absl::Status AddVector(const OperandSlot& slot, const GroupedGemmCase::Vector& vector,
                         std::optional<Array>& operand) {
    const absl::string_view name = slot.name;
    const DType dtype = vector.has_dtype() ? ToDType(vector.dtype()) : DefaultOf(slot.types);
    const bool is_float = !FormatOf(dtype).IsInteger();
    const auto& values = vector.values();
    operand = arrays_.Add(dtype, vector.dims());
    if (values.empty() && slot.types != Types::kSizes) {
      FillRandom(*operand, seed_++);
    } else if (values.size() != ElementCount(*operand)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has ", values.size(), " values, its dims say ", ElementCount(*operand)));
    }
    for (int i = 0; i < values.size(); ++i) {
      if (is_float) {
        StoreRounded(*operand, i, values[i]);
        continue;
      }
      if (!(std::abs(values[i]) <= 0x1p53) || values[i] != std::trunc(values[i])) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ": value ", values[i], " at index ", i, ", must be an integer of at most 2^53"));
      }
      if (absl::Status s = StoreInteger(name, *operand, i, static_cast<int64_t>(values[i])); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  const GroupedGemmCase& source_;
  ArrayStore& arrays_;
  GroupedGemmProblem& problem_;
  uint64_t seed_;
};

}  // namespace

void LimitRows(int64_t max_multiply_adds, GroupedGemmCase& recorded) {
  const int64_t multiply_adds_of_row = int64_t{recorded.k()} * recorded.n();
  if (multiply_adds_of_row <= 0) return;
  const int64_t max_rows = max_multiply_adds / multiply_adds_of_row;
  if (Sum(recorded.group_sizes()) <= max_rows) return;
  std::vector<int32_t> sizes;
  const auto scale = [&](double factor) {
    sizes.clear();
    for (int32_t size : recorded.group_sizes()) {
      sizes.push_back(size == 0 ? 0 : std::max(1, static_cast<int32_t>(size * factor)));
    }
  };
  // The factor max_rows / rows could leave too many rows, because each expert with rows keeps at least one. So this
  // loop finds the largest factor that fits, by bisection.
  double low = 0, high = 1;
  for (int step = 0; step < 40; ++step) {
    const double factor = (low + high) / 2;
    scale(factor);
    (Sum(sizes) <= max_rows ? low : high) = factor;
  }
  scale(low);
  recorded.mutable_group_sizes()->Assign(sizes.begin(), sizes.end());
}

absl::StatusOr<GroupedGemmCase> MakeExplicit(const GroupedGemmCase& recorded) {
  if (recorded.has_lhs() && recorded.has_rhs() && recorded.has_out()) return recorded;
  if (!recorded.has_k() || !recorded.has_n() || recorded.group_sizes().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("case ", recorded.name(), ": has neither lhs, rhs and out nor K, N and group_sizes"));
  }
  GroupedGemmCase full = recorded;
  const auto& sizes = recorded.group_sizes();
  const int64_t rows = Sum(sizes), k = recorded.k(), n = recorded.n();
  for (int64_t dim : {rows, k}) full.mutable_lhs()->add_dims(dim);
  for (int64_t dim : {static_cast<int64_t>(sizes.size()), k, n}) full.mutable_rhs()->add_dims(dim);
  for (int64_t dim : {rows, n}) full.mutable_out()->add_dims(dim);
  full.mutable_lhs()->mutable_first_dims()->Assign(sizes.begin(), sizes.end());
  full.mutable_out()->mutable_first_dims()->Assign(sizes.begin(), sizes.end());
  full.mutable_config()->set_ragged("lhs_first,out_first");
  return full;
}

void SetMatrixDType(DType dtype, GroupedGemmCase& explicit_case) {
  const DType compute = FormatOf(dtype).expands_to;
  explicit_case.mutable_lhs()->set_dtype(ToProto(dtype));
  explicit_case.mutable_rhs()->set_dtype(ToProto(dtype));
  explicit_case.mutable_out()->set_dtype(ToProto(compute));
  const GroupedGemmCase::Vector& bias = explicit_case.bias();
  const bool is_integer = bias.dtype() == GroupedGemmCase::S32;
  if (bias.has_dtype() && (is_integer || compute == DType::kS32 || SizeOf(ToDType(bias.dtype())) > SizeOf(compute))) {
    explicit_case.mutable_bias()->set_dtype(ToProto(compute));
  }
  std::vector<absl::string_view> operands = absl::StrSplit(explicit_case.config().operands(), ',', absl::SkipEmpty());
  const auto is_factor = [](absl::string_view name) {
    return absl::EndsWith(name, "_scale") || absl::EndsWith(name, "_zero");
  };
  operands.erase(std::remove_if(operands.begin(), operands.end(), is_factor), operands.end());
  explicit_case.clear_lhs_scale();
  explicit_case.clear_rhs_scale();
  explicit_case.clear_lhs_zero();
  explicit_case.clear_rhs_zero();
  if (!explicit_case.has_config()) return;
  explicit_case.mutable_config()->set_operands(absl::StrJoin(operands, ","));
  explicit_case.mutable_config()->clear_precision();
  explicit_case.mutable_config()->clear_lhs_block();
  // Only rounded rows take WORD_BLOCKS. COLUMN_BLOCKS have the same shape.
  if (explicit_case.config().rhs_layout() == proto::GroupedGemmConfig::WORD_BLOCKS) {
    explicit_case.mutable_config()->set_rhs_layout(proto::GroupedGemmConfig::COLUMN_BLOCKS);
  }
}

bool TakesPrecision(const GroupedGemmCase& explicit_case) {
  return explicit_case.lhs().dtype() == GroupedGemmCase::F32 && explicit_case.rhs().dtype() == GroupedGemmCase::F32 &&
         explicit_case.out().dtype() != GroupedGemmCase::F64;
}

std::string DTypesOf(const GroupedGemmCase& explicit_case) {
  const auto name = [](GroupedGemmCase::DType dtype) { return NameOf(ToDType(dtype)); };
  const auto& [lhs, rhs, out] = std::tie(explicit_case.lhs(), explicit_case.rhs(), explicit_case.out());
  using Config = proto::GroupedGemmConfig;
  const auto sums = explicit_case.config().bf16_sums();
  const auto precision = explicit_case.config().precision();
  const auto becomes_bf16 = [](GroupedGemmCase::DType dtype) {
    return ToDType(dtype) == DType::kBF16 || IsQuantized(ToDType(dtype));
  };
  const bool splits = precision != Config::Precision::DEFAULT;
  const bool named = sums != Config::Bf16Sums::AUTO && out.dtype() != GroupedGemmCase::S32 &&
                     !explicit_case.config().has_lhs_block() &&
                     (splits || (becomes_bf16(lhs.dtype()) && becomes_bf16(rhs.dtype())));
  const std::string what = splits ? absl::StrCat(":", Config::Precision::Value_Name(precision)) : "";
  const std::string how = named ? absl::StrCat(":", Config::Bf16Sums::Value_Name(sums)) : "";
  return absl::StrCat(name(lhs.dtype()), "*", name(rhs.dtype()), ">", name(out.dtype()),
                      absl::AsciiStrToLower(absl::StrCat(what, how)));
}

Array ArrayStore::Add(DType dtype, Dims dims) {
  int64_t most = SizeOf(dtype);
  for (int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(most, dim, &most)) {
      throw std::invalid_argument(
          absl::StrCat("shape [", absl::StrJoin(dims, ","), "]: dimension ", dim, " is negative or makes it overflow"));
    }
  }
  Array array{nullptr, dtype, std::move(dims)};
  if (const int64_t bytes = BytesOf(array); bytes > 0) {
    constexpr int64_t kAlignment = 64;
    array.data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (array.data == nullptr) throw std::bad_alloc();
  }
  buffers_.emplace_back(array.data);
  return array;
}

absl::StatusOr<CaseProblem> MakeCaseProblem(const GroupedGemmCase& explicit_case) {
  CaseProblem made;
  if (absl::Status status = Builder(explicit_case, made).Build(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("case ", explicit_case.name(), ": ", status.message()));
  }
  FillRandom(made.problem.lhs, FirstSeed(explicit_case), explicit_case.lhs().exponent());
  FillRandom(made.problem.rhs, FirstSeed(explicit_case) + 1, explicit_case.rhs().exponent());
  FillWithNan(made.problem.out);
  return made;
}

}  // namespace raggemm::host
