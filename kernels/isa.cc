#include "kernels/isa.h"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/element.h"
#include "raggemm/environment.h"
#include "raggemm/operands.h"

namespace raggemm {

extern const KernelRow kAvx512Bf16Kernels[1];
extern const KernelRow kAvx512Kernels[4];
extern const KernelRow kAvx2Kernels[4];
extern const KernelRow kScalarKernels[4];

namespace {

// The compiler's run-time support also asks the operating system whether it saves the registers. F16C is not among the
// names that every compiler's knows.
bool HasAvx2() {
  unsigned eax, ebx, ecx, edx;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16"); }

constexpr IsaRow kRows[] = {
    {Isa::kAvx512Bf16, "avx512_bf16", HasAvx512Bf16, kAvx512Bf16Kernels, Isa::kAvx512},
    {Isa::kAvx512, "avx512", HasAvx512, kAvx512Kernels},
    {Isa::kAvx2, "avx2", HasAvx2, kAvx2Kernels},
    {Isa::kScalar, "scalar", [] { return true; }, kScalarKernels},
};
static_assert(std::size(kRows) == kIsas);

}  // namespace

absl::Span<const IsaRow> IsaRows() { return kRows; }

const IsaRow& RowOf(Isa isa) {
  return *std::find_if(std::begin(kRows), std::end(kRows), [isa](const IsaRow& row) { return row.isa == isa; });
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

absl::StatusOr<const Arithmetic*> ArithmeticFor(const GroupedGemmProblem& problem) {
  const auto row = [](ArithmeticId id) { return &kArithmetics[static_cast<int>(id)]; };
  if (ComputeType(problem) == DType::kF64) return row(ArithmeticId::kF64);
  if (problem.lhs.dtype != DType::kBF16 || problem.rhs.dtype != DType::kBF16) return row(ArithmeticId::kF32);
  const absl::StatusOr<Bf16Sums> sums =
      problem.bf16_sums == Bf16Sums::kAuto ? DefaultBf16Sums(ProcessEnvironment()) : problem.bf16_sums;
  if (!sums.ok()) return sums.status();
  return row(*sums == Bf16Sums::kTiles   ? ArithmeticId::kTiles
             : *sums == Bf16Sums::kPairs ? ArithmeticId::kPairs
                                         : ArithmeticId::kF32);
}

const KernelRow* OwnKernelsFor(Isa isa, const Arithmetic& arithmetic) {
  for (const KernelRow& row : RowOf(isa).kernels) {
    if (&ArithmeticOf(row) == &arithmetic) return &row;
  }
  return nullptr;
}

const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic) {
  const KernelRow* own = OwnKernelsFor(isa, arithmetic);
  return own != nullptr ? *own : KernelsFor(*RowOf(isa).base, arithmetic);
}

int64_t PanelBytes(const PanelLayout& layout, int64_t k, int64_t width) {
  return (k + layout.k_group - 1) / layout.k_group * layout.k_group * width * SizeOf(layout.element);
}

absl::StatusOr<Isa> ChooseIsa(const Options& options, const Arithmetic& arithmetic) {
  absl::StatusOr<Isa> isa = options.isa ? *options.isa : DefaultIsa(ProcessEnvironment(), options.cpu, arithmetic);
  if (!isa.ok() || options.cpu.Has(*isa)) return isa;
  std::vector<absl::string_view> usable;
  for (const IsaRow& row : kRows) {
    if (options.cpu.Has(row.isa)) usable.push_back(row.name);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("isa: this CPU does not have ", NameOf(*isa), ", but ", absl::StrJoin(usable, ", ")));
}

KernelFloatMode::KernelFloatMode(bool flushes) : saved_(__builtin_ia32_stmxcsr()) {
  constexpr unsigned kMasked = 0x1f80, kFlushResults = 1 << 15, kOperandsAreZero = 1 << 6;
  __builtin_ia32_ldmxcsr(kMasked | (flushes ? kFlushResults | kOperandsAreZero : 0));
}
KernelFloatMode::~KernelFloatMode() { __builtin_ia32_ldmxcsr(saved_); }

void FenceStores() { __builtin_ia32_sfence(); }

}  // namespace raggemm
