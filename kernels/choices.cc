#include "kernels/choices.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/enumerators.h"
#include "kernels/errors.h"
#include "kernels/factors.h"
#include "kernels/isa.h"

namespace raggemm {
namespace {

// Takes the options' ISA, else the environment's, else PreferredIsa. FailedPrecondition where the options' CPU lacks
// it.
absl::StatusOr<Isa> ChooseIsa(const Options& options, const Arithmetic& arithmetic) {
  if (options.isa) {
    if (absl::Status s = CheckEnumerator("isa", *options.isa, IsaRows().size()); !s.ok()) return s;
  }
  absl::StatusOr<Isa> isa = options.isa ? *options.isa : DefaultIsa(ProcessEnvironment(), options.cpu, arithmetic);
  if (!isa.ok() || options.cpu.Has(*isa)) return isa;
  std::vector<absl::string_view> usable;
  for (const IsaRow& row : IsaRows()) {
    if (options.cpu.Has(row.isa)) usable.push_back(row.name);
  }
  const char* missing = options.cpu.missing[static_cast<size_t>(*isa)];
  return absl::FailedPreconditionError(absl::StrCat("isa: ", NameOf(*isa), " is not usable here, because ",
                                                    missing == nullptr ? "the CPU of the plan lacks it" : missing,
                                                    "; usable: ", absl::StrJoin(usable, ", ")));
}

Expand* ExpandFor(Isa isa, const Operand& x) {
  const Expanders& expanders = ExpandersFor(isa);
  const auto* format = std::find_if(std::begin(kQuantized), std::end(kQuantized),
                                    [&](const QuantizedFormat& row) { return row.dtype == x.dtype; });
  const auto index = format - std::begin(kQuantized);
  return x.expanded == DType::kBF16  ? expanders.to_bf16[index]
         : x.expanded == DType::kF32 ? expanders.to_f32[index]
                                     : expanders.to_bytes[index];
}

// Kernels and packers read an operand as it is stored where they can and may, else what it is expanded to.
Reading ReadingOf(const Schedule& schedule, const Operand& x, Packers FormatKernels::*packers) {
  const KernelRow& kernels = *schedule.kernels;
  const bool is_lhs = &x == &schedule.lhs;
  const bool begins_within_bytes = is_lhs && x.is_trans && FormatOf(x.dtype).bits < 8;  // a row tile, anywhere
  const bool ends_within_bytes = x.cols % 8 * FormatOf(x.dtype).bits % 8 != 0;          // of column blocks
  const bool as_stored =
      !begins_within_bytes && !ends_within_bytes && (!HasFactorsOfElements(x) || HasBlockScales(x, is_lhs));
  Reading reading;
  reading.type = as_stored && (KernelsOf(kernels, x.dtype).*packers).rows != nullptr ? x.dtype : x.expanded;
  reading.expand = reading.type == x.dtype ? nullptr : ExpandFor(schedule.isa, x);
  reading.pack = &(KernelsOf(kernels, reading.type).*packers);
  return reading;
}

void ChooseReadings(Schedule& schedule) {
  schedule.read_lhs = ReadingOf(schedule, schedule.lhs, &FormatKernels::lhs);
  schedule.read_rhs = ReadingOf(schedule, schedule.rhs, &FormatKernels::rhs);
  const bool expands = schedule.read_lhs.expand != nullptr || schedule.read_rhs.expand != nullptr;
  if (schedule.arithmetic->sum == DType::kS32 && !schedule.kernels->adds_totals && !expands) {
    schedule.panel = kBytePanel;
  }
  if (schedule.sum_steps != 0) schedule.panel = std::min(schedule.panel, schedule.sum_steps);
  const auto split = static_cast<int>(schedule.products.precision);
  schedule.splitting = &kSplittings[split];
  if (schedule.products.precision == Precision::kDefault) return;
  schedule.read_lhs.pack = &schedule.kernels->terms[split].lhs;
  schedule.read_rhs.pack = &schedule.kernels->terms[split].rhs;
  schedule.panel = kSplitPanel;
}

void ChooseKernels(Schedule& schedule) {
  const KernelRow& of_f32 = KernelsFor(schedule.isa, kArithmetics[static_cast<int>(ArithmeticId::kF32)]);
  schedule.kernels = &KernelsFor(schedule.isa, *schedule.arithmetic);
  const bool ends_in_f32 = schedule.arithmetic->sum == DType::kS32 && schedule.out.dtype != DType::kS32;
  schedule.ends = ends_in_f32 ? &of_f32 : schedule.kernels;
  if (!schedule.activation) return;
  schedule.activate = KernelsOf(of_f32, schedule.out.dtype).activate[static_cast<int>(*schedule.activation)];
}

// Leaves 0 threads where neither the caller nor the environment says how many.
absl::Status ChooseExecutor(const Options& options, Schedule& schedule) {
  const Environment& environment = ProcessEnvironment();
  constexpr int kExecutors = static_cast<int>(Executor::kSerial) + 1;
  if (absl::Status s = CheckEnumerator("executor", options.executor, kExecutors); !s.ok()) return s;
  schedule.pool = options.pool;
  const absl::StatusOr<Executor> executor =
      options.executor == Executor::kAuto ? DefaultExecutor(environment, schedule.pool != nullptr) : options.executor;
  if (!executor.ok()) return executor.status();
  schedule.executor = *executor;
  if (schedule.executor == Executor::kPool && schedule.pool == nullptr) {
    return absl::FailedPreconditionError("executor: a pool is asked for, but the caller has none");
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: value ", options.threads, ", must be in [0, ", kMaxThreads, "]"));
  }
  schedule.threads = schedule.executor == Executor::kSerial ? 1 : options.threads;
  if (schedule.threads != 0) return absl::OkStatus();
  const absl::StatusOr<int64_t> threads = DefaultThreads(environment);
  if (threads.ok()) schedule.threads = *threads;
  return threads.status();
}

}  // namespace

absl::StatusOr<ChosenArithmetic> ArithmeticFor(const Products& products, const Cpu& cpu) {
  const auto row = [](ArithmeticId id) { return &kArithmetics[static_cast<int>(id)]; };
  if (products.sums_integers) return ChosenArithmetic{row(ArithmeticId::kS32), nullptr};
  if (products.compute == DType::kF64) return ChosenArithmetic{row(ArithmeticId::kF64), nullptr};
  const bool splits = products.precision != Precision::kDefault;
  if (!splits && (products.lhs != DType::kBF16 || products.rhs != DType::kBF16)) {
    return ChosenArithmetic{row(ArithmeticId::kF32), nullptr};
  }
  if (!products.bf16_sums) return DefaultBf16Arithmetic(ProcessEnvironment(), cpu, splits);
  const Arithmetic& named = *row(*products.bf16_sums);
  if (named.bf16_sums == nullptr) return Invalid("bf16_sums: ", named.name, " is no rule for products of bf16");
  if (!splits || named.split_block != 0) return ChosenArithmetic{&named, "as bf16_sums says"};
  return Invalid("bf16_sums: ", named.bf16_sums, " sums no terms of f32, which precision asks for");
}

absl::Status MakeChoices(const Options& options, Schedule& schedule) {
  const absl::StatusOr<ChosenArithmetic> arithmetic = ArithmeticFor(schedule.products, options.cpu);
  if (!arithmetic.ok()) return arithmetic.status();
  schedule.arithmetic = arithmetic->arithmetic;
  schedule.arithmetic_because = arithmetic->because;
  schedule.cpu = options.cpu;
  const absl::StatusOr<Isa> isa = ChooseIsa(options, *schedule.arithmetic);
  if (!isa.ok()) return isa.status();
  schedule.isa = *isa;
  ChooseKernels(schedule);
  ChooseReadings(schedule);
  return ChooseExecutor(options, schedule);
}

}  // namespace raggemm
