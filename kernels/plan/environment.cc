#include "raggemm/environment.h"

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "kernels/target/isa.h"

namespace raggemm {
namespace {

constexpr absl::string_view kAuto = "AUTO";

std::optional<std::string> Read(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

absl::Status Unusable(absl::string_view variable, absl::string_view value, absl::string_view usable) {
  return absl::FailedPreconditionError(absl::StrCat(variable, ": value \"", absl::CHexEscape(value),
                                                    "\" is unknown or not usable here; usable: ", usable));
}

bool LeavesOpen(const std::optional<std::string>& value) { return !value || absl::EqualsIgnoreCase(*value, kAuto); }

}  // namespace

absl::string_view NameOf(Executor executor) {
  static constexpr absl::string_view kNames[] = {"auto", "openmp", "pool", "serial"};
  return kNames[static_cast<int>(executor)];
}

const Environment& ProcessEnvironment() {
  static const Environment environment{Read("RAGGEMM_ISA"), Read("RAGGEMM_THREADS"), Read("RAGGEMM_EXECUTOR"),
                                       Read("RAGGEMM_BF16_SUMS")};
  return environment;
}

absl::StatusOr<Isa> DefaultIsa(const Environment& environment, const Cpu& cpu, const Arithmetic& arithmetic) {
  if (LeavesOpen(environment.isa)) return PreferredIsa(cpu, arithmetic);
  std::vector<std::string> usable = {std::string(kAuto)};
  for (Isa isa : AllIsas()) {
    if (!cpu.Has(isa)) continue;
    if (IsaOf(*environment.isa) == isa) return isa;
    usable.push_back(absl::AsciiStrToUpper(NameOf(isa)));
  }
  const std::optional<Isa> known = IsaOf(*environment.isa);
  const char* missing = known ? cpu.missing[static_cast<size_t>(*known)] : nullptr;
  return Unusable("RAGGEMM_ISA", *environment.isa,
                  absl::StrCat(absl::StrJoin(usable, ", "), missing == nullptr ? "" : "; ", missing));
}

absl::StatusOr<Executor> DefaultExecutor(const Environment& environment, bool has_pool) {
  if (LeavesOpen(environment.executor)) return has_pool ? Executor::kPool : Executor::kOpenMp;
  std::vector<std::string> usable = {std::string(kAuto)};
  for (Executor executor : {Executor::kOpenMp, Executor::kPool, Executor::kSerial}) {
    if (executor == Executor::kPool && !has_pool) continue;
    if (absl::EqualsIgnoreCase(*environment.executor, NameOf(executor))) return executor;
    usable.push_back(absl::AsciiStrToUpper(NameOf(executor)));
  }
  return Unusable("RAGGEMM_EXECUTOR", *environment.executor, absl::StrJoin(usable, ", "));
}

std::optional<ArithmeticId> Bf16SumsOf(absl::string_view name) {
  for (size_t i = 0; i < std::size(kArithmetics); ++i) {
    const Arithmetic& row = kArithmetics[i];
    if (row.bf16_sums != nullptr && absl::EqualsIgnoreCase(row.bf16_sums, name)) return static_cast<ArithmeticId>(i);
  }
  return std::nullopt;
}

std::optional<Precision> PrecisionOf(absl::string_view name) {
  for (size_t i = 0; i < std::size(kSplittings); ++i) {
    if (absl::EqualsIgnoreCase(kSplittings[i].name, name)) return static_cast<Precision>(i);
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<ArithmeticId>> DefaultBf16Sums(const Environment& environment) {
  if (LeavesOpen(environment.bf16_sums)) return std::nullopt;
  if (const std::optional<ArithmeticId> sums = Bf16SumsOf(*environment.bf16_sums)) return sums;
  std::string usable(kAuto);
  for (const Arithmetic& row : kArithmetics) {
    if (row.bf16_sums != nullptr) absl::StrAppend(&usable, ", ", absl::AsciiStrToUpper(row.bf16_sums));
  }
  return Unusable("RAGGEMM_BF16_SUMS", *environment.bf16_sums, usable);
}

absl::StatusOr<ChosenArithmetic> DefaultBf16Arithmetic(const Environment& environment, const Cpu& cpu, bool splits) {
  const absl::StatusOr<std::optional<ArithmeticId>> named = DefaultBf16Sums(environment);
  if (!named.ok()) return named.status();
  const auto can = [&](const Arithmetic& row) { return !splits || row.split_block != 0; };
  if (*named) {
    const Arithmetic& row = kArithmetics[static_cast<int>(**named)];
    if (can(row)) return ChosenArithmetic{&row, "as RAGGEMM_BF16_SUMS says"};
    return absl::FailedPreconditionError(absl::StrCat("RAGGEMM_BF16_SUMS: value \"", *environment.bf16_sums,
                                                      "\" cannot sum the bf16 parts of f32 that precision asks for"));
  }
  constexpr const char* kBecause = "as the best ISA of this CPU sums them";
  for (const IsaRow& isa : IsaRows()) {
    if (!cpu.Has(isa.isa)) continue;
    for (const KernelRow& row : isa.kernels) {
      const bool is_unit = ArithmeticOf(row).product == DType::kBF16 && row.products_per_fma > 1;
      if (is_unit && can(ArithmeticOf(row))) return ChosenArithmetic{&ArithmeticOf(row), kBecause};
    }
  }
  const Arithmetic& of_cpu = kArithmetics[static_cast<int>(Bf16SumsWithoutUnit())];
  return ChosenArithmetic{can(of_cpu) ? &of_cpu : &kArithmetics[static_cast<int>(ArithmeticId::kPairs)], kBecause};
}

absl::StatusOr<int64_t> DefaultThreads(const Environment& environment) {
  if (!environment.threads) return 0;
  int64_t threads;
  if (absl::SimpleAtoi(*environment.threads, &threads) && threads >= 0 && threads <= kMaxThreads) return threads;
  return Unusable("RAGGEMM_THREADS", *environment.threads, absl::StrCat("0 (all) to ", kMaxThreads));
}

}  // namespace raggemm
