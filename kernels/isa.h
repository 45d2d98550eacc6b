// Which instruction sets there are, what each computes with, and which of them a call takes.
#ifndef RAGGEMM_KERNELS_ISA_H_
#define RAGGEMM_KERNELS_ISA_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/microkernel.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

struct IsaRow {
  Isa isa;
  const char* name;
  bool (*usable)();  // by this CPU and its operating system
  absl::Span<const KernelRow> kernels;
  std::optional<Isa> base = std::nullopt;  // what computes the arithmetics of which it has no kernels of its own
};

// Built on every machine, whatever it can run. Best first.
absl::Span<const IsaRow> IsaRows();
const IsaRow& RowOf(Isa isa);

// "f32_14x32_avx512"
std::string NameOf(const KernelRow& kernels);

// FailedPrecondition where the problem leaves it to the environment and that names no rule.
absl::StatusOr<const Arithmetic*> ArithmeticFor(const GroupedGemmProblem& problem);
inline const Arithmetic& ArithmeticOf(const KernelRow& row) { return kArithmetics[static_cast<int>(row.arithmetic)]; }
const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic);
const KernelRow* OwnKernelsFor(Isa isa, const Arithmetic& arithmetic);  // null where its base computes them
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

// Orders stores that went past the caches before all that follow.
void FenceStores();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_H_
