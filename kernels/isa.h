// Which instruction sets there are, what each computes with, and which of them a call takes.
#ifndef RAGGEMM_KERNELS_ISA_H_
#define RAGGEMM_KERNELS_ISA_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/microkernel.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

struct IsaRow {
  Isa isa;
  const char* name;
  const char* (*missing)();  // what this CPU or its operating system lacks for it; null: nothing
  absl::Span<const KernelRow> kernels;
  Isa (*base)() = nullptr;  // of a unit: what computes the arithmetics of which it has no kernels of its own
  const Expanders* expanders = nullptr;  // null: its base's
  bool usable() const { return missing() == nullptr; }
};

// Built on every machine, whatever it can run. Best first.
absl::Span<const IsaRow> IsaRows();
const IsaRow& RowOf(Isa isa);

// "f32_14x32_avx512"
std::string NameOf(const KernelRow& kernels);

// How a problem is summed, `because` null where its types leave no choice. InvalidArgument where the problem names a
// rule of other products; FailedPrecondition where it leaves the rule to the environment, which names none.
absl::StatusOr<ChosenArithmetic> ArithmeticFor(const GroupedGemmProblem& problem, const Cpu& cpu);
inline const Arithmetic& ArithmeticOf(const KernelRow& row) { return kArithmetics[static_cast<int>(row.arithmetic)]; }
const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic);
const KernelRow* OwnKernelsFor(Isa isa, const Arithmetic& arithmetic);  // null where its base computes them
const Expanders& ExpandersFor(Isa isa);
inline const FormatKernels& KernelsOf(const KernelRow& row, DType dtype) {
  return row.formats[static_cast<int>(dtype)];
}

// Of k steps, a multiple of k_group or a whole panel: where the step behind them stands, too.
int64_t PanelBytes(const PanelLayout& layout, int64_t k, int64_t width);

// Options', else the environment's, else PreferredIsa. FailedPrecondition where the options' CPU does not have it.
absl::StatusOr<Isa> ChooseIsa(const Options& options, const Arithmetic& arithmetic);

// Rounding to nearest while this lives, denormals kept or flushed, whatever the thread has been told: XLA's flush them,
// OpenMP's do not.
class KernelFloatMode {
 public:
  explicit KernelFloatMode(bool flushes = false);
  ~KernelFloatMode();
  KernelFloatMode(const KernelFloatMode&) = delete;
  KernelFloatMode& operator=(const KernelFloatMode&) = delete;

 private:
  unsigned saved_;
};

// A unit that kernels use is set up on this thread while this lives, and then as it was before.
class KernelUnit {
 public:
  explicit KernelUnit(const KernelRow& kernels) : kernels_(kernels) {
    if (kernels.set_up != nullptr) kernels.set_up(saved_);
  }
  ~KernelUnit() {
    if (kernels_.restore != nullptr) kernels_.restore(saved_);
  }
  KernelUnit(const KernelUnit&) = delete;
  KernelUnit& operator=(const KernelUnit&) = delete;

 private:
  const KernelRow& kernels_;
  alignas(64) unsigned char saved_[kUnitState];
};

// Orders stores that went past the caches before all that follow.
void FenceStores();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_H_
