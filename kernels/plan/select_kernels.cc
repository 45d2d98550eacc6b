#include "kernels/plan/select_kernels.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check/errors.h"
#include "kernels/plan/quant_params.h"
#include "kernels/target/isa.h"

namespace raggemm {
namespace {

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

// Returns how kernels and packers read an operand: in its stored type if possible, else dequantized.
OperandAccess AccessTo(const Operand& x, bool is_lhs, const KernelChoice& kernels) {
  const auto packers_of = [&](DType type) -> const Packers& {
    const FormatKernels& format = KernelsOf(*kernels.row, type);
    return is_lhs ? format.lhs : format.rhs;
  };
  // Kernels can neither begin nor end within a byte. Register tiles of a transposed lhs may begin at any element, and
  // rows of column blocks may end at any element.
  const bool begins_within_bytes = is_lhs && x.is_trans && FormatOf(x.dtype).bits < 8;
  const bool ends_within_bytes = x.cols % 8 * FormatOf(x.dtype).bits % 8 != 0;
  const bool as_stored =
      !begins_within_bytes && !ends_within_bytes && (!ScalesElements(x) || HasBlockScales(x, is_lhs));
  OperandAccess access;
  if (x.in_word_blocks) {
    access.type = x.dtype;
    access.pack = &packers_of(x.dtype);
    return access;
  }
  access.type = as_stored && packers_of(x.dtype).rows != nullptr ? x.dtype : x.product_type;
  access.dequantize = access.type == x.dtype ? nullptr : DequantizerFor(kernels.isa, x.dtype, x.product_type);
  access.pack = &packers_of(access.type);
  return access;
}

// Returns the steps of k in a KC block of rounded rows. Few stretches end within a KC block.
int64_t KcOfStretches(const KernelRow& kernels, const Checked& call, bool dequantizes) {
  const int64_t steps = RoundUp(call.stretch, kernels.k_step), most = call.rhs.in_word_blocks ? kWordBlockKc : kKc;
  if (steps <= most) return most / steps * steps;
  return dequantizes ? kKc : std::min(steps, kByteKc);
}

void ChooseAccess(const Checked& call, KernelChoice& kernels) {
  if (call.products.rounds_lhs) {
    kernels.lhs.type = call.lhs.dtype;
    kernels.rhs = AccessTo(call.rhs, false, kernels);
    kernels.kc = KcOfStretches(*kernels.row, call, kernels.rhs.dequantize != nullptr);
    return;
  }
  kernels.lhs = AccessTo(call.lhs, true, kernels);
  kernels.rhs = AccessTo(call.rhs, false, kernels);
  const bool dequantizes = kernels.lhs.dequantize != nullptr || kernels.rhs.dequantize != nullptr;
  if (kernels.arithmetic->sum == DType::kS32 && !kernels.row->adds_totals && !dequantizes) kernels.kc = kByteKc;
  if (call.sum_steps != 0) kernels.kc = std::min(kernels.kc, call.sum_steps);
  const auto split = static_cast<int>(call.products.precision);
  kernels.splitting = &kSplittings[split];
  if (call.products.precision == Precision::kDefault) return;
  kernels.lhs.pack = &kernels.row->split[split].lhs;
  kernels.rhs.pack = &kernels.row->split[split].rhs;
  kernels.kc = kSplitKc;
}

}  // namespace

Dequantize* DequantizerFor(Isa isa, DType from, DType to) {
  const auto* format = std::find_if(std::begin(kQuantized), std::end(kQuantized),
                                    [&](const QuantizedFormat& row) { return row.dtype == from; });
  if (format == std::end(kQuantized)) return nullptr;
  const Dequantizers& dequantizers = DequantizersFor(isa);
  const auto index = format - std::begin(kQuantized);
  return to == DType::kBF16  ? dequantizers.to_bf16[index]
         : to == DType::kF32 ? dequantizers.to_f32[index]
                             : dequantizers.to_bytes[index];
}

absl::StatusOr<ChosenArithmetic> ArithmeticFor(const Products& products, const Cpu& cpu) {
  const auto row = [](ArithmeticId id) { return &kArithmetics[static_cast<int>(id)]; };
  if (products.rounds_lhs) return ChosenArithmetic{row(ArithmeticId::kRounded), nullptr};
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
  return Invalid("bf16_sums: ", named.bf16_sums, " cannot sum the bf16 parts of f32 that precision asks for");
}

absl::StatusOr<KernelChoice> SelectKernels(const Checked& call, const Options& options) {
  const absl::StatusOr<ChosenArithmetic> arithmetic = ArithmeticFor(call.products, options.cpu);
  if (!arithmetic.ok()) return arithmetic.status();
  const absl::StatusOr<Isa> isa = ChooseIsa(options, *arithmetic->arithmetic);
  if (!isa.ok()) return isa.status();
  KernelChoice kernels{
      .arithmetic = arithmetic->arithmetic, .because = arithmetic->because, .cpu = options.cpu, .isa = *isa};
  kernels.row = &KernelsFor(*isa, *kernels.arithmetic);
  const KernelRow& of_f32 = KernelsFor(*isa, kArithmetics[static_cast<int>(ArithmeticId::kF32)]);
  kernels.floats = &of_f32;
  const bool ends_in_f32 = kernels.arithmetic->sum == DType::kS32 && call.out.dtype != DType::kS32;
  kernels.epilogue = ends_in_f32 ? &of_f32 : kernels.row;
  if (call.activation) {
    kernels.activate = KernelsOf(of_f32, call.out.dtype).activate[static_cast<int>(*call.activation)];
  }
  ChooseAccess(call, kernels);
  return kernels;
}

absl::StatusOr<ThreadChoice> SelectThreads(const Options& options) {
  const Environment& environment = ProcessEnvironment();
  constexpr int kExecutors = static_cast<int>(Executor::kSerial) + 1;
  if (absl::Status s = CheckEnumerator("executor", options.executor, kExecutors); !s.ok()) return s;
  const absl::StatusOr<Executor> executor =
      options.executor == Executor::kAuto ? DefaultExecutor(environment, options.pool != nullptr) : options.executor;
  if (!executor.ok()) return executor.status();
  if (*executor == Executor::kPool && options.pool == nullptr) {
    return absl::FailedPreconditionError("executor: a pool is asked for, but the caller has none");
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return Invalid("threads: value ", options.threads, ", must be in [0, ", kMaxThreads, "]");
  }
  ThreadChoice threads{*executor, *executor == Executor::kSerial ? 1 : options.threads, options.pool};
  if (threads.count != 0) return threads;
  const absl::StatusOr<int64_t> count = DefaultThreads(environment);
  if (!count.ok()) return count.status();
  threads.count = *count;
  return threads;
}

}  // namespace raggemm
