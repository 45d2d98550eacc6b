#include "kernels/isa.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cpuid.h"
#include "kernels/element.h"
#include "kernels/enumerators.h"
#include "kernels/factors.h"
#include "kernels/units.h"
#include "raggemm/environment.h"
#include "raggemm/operands.h"

namespace raggemm {

extern const KernelRow kAmxKernels[2];
extern const KernelRow kAvx512Bf16Kernels[1];
extern const KernelRow kAvx512VnniKernels[1];
extern const KernelRow kAvx512Kernels[5];
extern const KernelRow kAvxVnniKernels[1];
extern const KernelRow kAvx2Kernels[5];
extern const KernelRow kScalarKernels[5];
extern const Expanders kAvx512Expanders;
extern const Expanders kAvx2Expanders;
extern const Expanders kScalarExpanders;

namespace {

constexpr IsaRow kRows[] = {
    {Isa::kAmx, "amx", MissingForAmx, kAmxKernels, BaseOfUnits},
    {Isa::kAvx512Bf16, "avx512_bf16", MissingForAvx512Bf16, kAvx512Bf16Kernels, BaseOfUnits},
    {Isa::kAvx512Vnni, "avx512_vnni", MissingForAvx512Vnni, kAvx512VnniKernels, [] { return Isa::kAvx512; }},
    {Isa::kAvx512, "avx512", MissingForAvx512, kAvx512Kernels, nullptr, &kAvx512Expanders},
    {Isa::kAvxVnni, "avx_vnni", MissingForAvxVnni, kAvxVnniKernels, [] { return Isa::kAvx2; }},
    {Isa::kAvx2, "avx2", MissingForAvx2, kAvx2Kernels, nullptr, &kAvx2Expanders},
    {Isa::kScalar, "scalar", [] { return static_cast<const char*>(nullptr); }, kScalarKernels, nullptr,
     &kScalarExpanders},
};
static_assert(std::size(kRows) == kIsas);

}  // namespace

absl::Span<const IsaRow> IsaRows() {
  static const std::array<IsaRow, kIsas> rows = [] {
    auto rows = std::to_array(kRows);
    if (LacksTilesOfBytes()) rows.front().kernels.remove_suffix(1);  // of AMX, where those of bytes stand last
    return rows;
  }();
  return rows;
}

const IsaRow& RowOf(Isa isa) {
  const absl::Span<const IsaRow> rows = IsaRows();
  return *std::find_if(rows.begin(), rows.end(), [isa](const IsaRow& row) { return row.isa == isa; });
}

absl::Span<const Isa> AllIsas() {
  static constexpr auto kAll = [] {
    std::array<Isa, kIsas> all{};
    std::transform(std::begin(kRows), std::end(kRows), all.begin(), [](const IsaRow& row) { return row.isa; });
    return all;
  }();
  return kAll;
}

absl::string_view NameOf(Isa isa) { return RowOf(isa).name; }

absl::string_view MissingFor(Isa isa) {
  const char* missing = RowOf(isa).missing();
  return missing != nullptr ? missing : "";
}

std::optional<Isa> IsaOf(absl::string_view name) {
  for (const IsaRow& row : kRows) {
    if (absl::EqualsIgnoreCase(row.name, name)) return row.isa;
  }
  return std::nullopt;
}

std::string NameOf(const KernelRow& kernels) {
  const IsaRow& isa = *std::find_if(std::begin(kRows), std::end(kRows), [&](const IsaRow& row) {
    return &kernels >= row.kernels.begin() && &kernels < row.kernels.end();
  });
  return absl::StrCat(ArithmeticOf(kernels).name, "_", kernels.rows, "x", kernels.cols, "_", isa.name);
}

std::vector<std::string> KernelNames(Isa isa) {
  std::vector<std::string> names;
  for (const KernelRow& kernels : RowOf(isa).kernels) names.push_back(NameOf(kernels));
  return names;
}

absl::StatusOr<ChosenArithmetic> ArithmeticFor(const GroupedGemmProblem& problem, const Cpu& cpu) {
  const auto row = [](ArithmeticId id) { return &kArithmetics[static_cast<int>(id)]; };
  if (SumsIntegers(problem)) return ChosenArithmetic{row(ArithmeticId::kS32), nullptr};
  if (ComputeType(problem) == DType::kF64) return ChosenArithmetic{row(ArithmeticId::kF64), nullptr};
  const bool splits = problem.precision != Precision::kDefault;
  const ExpandedTypes types = ExpandedTypesOf(problem);
  if (!splits && (types.lhs != DType::kBF16 || types.rhs != DType::kBF16)) {
    return ChosenArithmetic{row(ArithmeticId::kF32), nullptr};
  }
  if (!problem.bf16_sums) return DefaultBf16Arithmetic(ProcessEnvironment(), cpu);
  const Arithmetic& named = *row(*problem.bf16_sums);
  if (named.product == DType::kBF16) return ChosenArithmetic{&named, "as bf16_sums says"};
  return absl::InvalidArgumentError(absl::StrCat("bf16_sums: ", named.name, " is no rule for products of bf16"));
}

const KernelRow* OwnKernelsFor(Isa isa, const Arithmetic& arithmetic) {
  for (const KernelRow& row : RowOf(isa).kernels) {
    if (&ArithmeticOf(row) == &arithmetic) return &row;
  }
  return nullptr;
}

const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic) {
  const KernelRow* own = OwnKernelsFor(isa, arithmetic);
  return own != nullptr ? *own : KernelsFor(RowOf(isa).base(), arithmetic);
}

const Expanders& ExpandersFor(Isa isa) {
  const IsaRow& row = RowOf(isa);
  return row.expanders != nullptr ? *row.expanders : ExpandersFor(row.base());
}

int64_t PanelBytes(const PanelLayout& layout, int64_t k, int64_t width) {
  return (k + layout.k_group - 1) / layout.k_group * layout.k_group * width * SizeOf(layout.element);
}

absl::StatusOr<Isa> ChooseIsa(const Options& options, const Arithmetic& arithmetic) {
  if (options.isa) {
    if (absl::Status s = CheckEnumerator("isa", *options.isa, kIsas); !s.ok()) return s;
  }
  absl::StatusOr<Isa> isa = options.isa ? *options.isa : DefaultIsa(ProcessEnvironment(), options.cpu, arithmetic);
  if (!isa.ok() || options.cpu.Has(*isa)) return isa;
  std::vector<absl::string_view> usable;
  for (const IsaRow& row : kRows) {
    if (options.cpu.Has(row.isa)) usable.push_back(row.name);
  }
  const char* missing = options.cpu.missing[static_cast<size_t>(*isa)];
  return absl::FailedPreconditionError(absl::StrCat("isa: ", NameOf(*isa), " is not usable here, because ",
                                                    missing == nullptr ? "the CPU of the plan lacks it" : missing,
                                                    "; usable: ", absl::StrJoin(usable, ", ")));
}

KernelFloatMode::KernelFloatMode(bool flushes) : saved_(__builtin_ia32_stmxcsr()) {
  constexpr unsigned kMasked = 0x1f80, kFlushResults = 1 << 15, kOperandsAreZero = 1 << 6;
  __builtin_ia32_ldmxcsr(kMasked | (flushes ? kFlushResults | kOperandsAreZero : 0));
}
KernelFloatMode::~KernelFloatMode() { __builtin_ia32_ldmxcsr(saved_); }

void FenceStores() { __builtin_ia32_sfence(); }

}  // namespace raggemm
