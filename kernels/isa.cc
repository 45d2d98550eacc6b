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

namespace raggemm {

extern const KernelRow kAvx512Kernels[2];
extern const KernelRow kAvx2Kernels[2];
extern const KernelRow kScalarKernels[2];

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

constexpr IsaRow kRows[] = {
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

std::string NameOf(const IsaRow& isa, const KernelRow& kernels) {
  return absl::StrCat(ArithmeticOf(kernels).name, "_", kernels.rows, "x", kernels.cols, "_", isa.name);
}

std::vector<std::string> KernelNames(Isa isa) {
  std::vector<std::string> names;
  for (const KernelRow& kernels : RowOf(isa).kernels) names.push_back(NameOf(RowOf(isa), kernels));
  return names;
}

const Arithmetic& ArithmeticFor(DType sum) {
  return *std::find_if(std::begin(kArithmetics), std::end(kArithmetics),
                       [sum](const Arithmetic& arithmetic) { return arithmetic.sum == sum; });
}

const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic) {
  const absl::Span<const KernelRow> kernels = RowOf(isa).kernels;
  return *std::find_if(kernels.begin(), kernels.end(),
                       [&](const KernelRow& row) { return &ArithmeticOf(row) == &arithmetic; });
}

int64_t PanelBytes(const PanelLayout& layout, int64_t k, int64_t width) {
  return (k + layout.k_group - 1) / layout.k_group * layout.k_group * width * SizeOf(layout.element);
}

absl::StatusOr<Isa> ChooseIsa(const Options& options) {
  absl::StatusOr<Isa> isa = options.isa ? *options.isa : DefaultIsa(ProcessEnvironment(), options.cpu);
  if (!isa.ok() || options.cpu.Has(*isa)) return isa;
  std::vector<absl::string_view> usable;
  for (const IsaRow& row : kRows) {
    if (options.cpu.Has(row.isa)) usable.push_back(row.name);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("isa: this CPU does not have ", NameOf(*isa), ", but ", absl::StrJoin(usable, ", ")));
}

KernelFloatMode::KernelFloatMode() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1f80); }
KernelFloatMode::~KernelFloatMode() { __builtin_ia32_ldmxcsr(saved_); }

void FenceStores() { __builtin_ia32_sfence(); }

}  // namespace raggemm
