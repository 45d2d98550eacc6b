// Which instruction sets there are, what each computes with, and which of them a call takes.
#ifndef RAGGEMM_KERNELS_ISA_H_
#define RAGGEMM_KERNELS_ISA_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/microkernel.h"
#include "raggemm/plan.h"
#include "raggemm/types.h"

namespace raggemm {

struct IsaRow {
  Isa isa;
  const char* name;
  bool (*usable)();  // by this CPU and its operating system
  absl::Span<const KernelRow> kernels;
};

// Built on every machine, whatever it can run. Best first.
absl::Span<const IsaRow> IsaRows();
const IsaRow& RowOf(Isa isa);

// "f32_14x32_avx512"
std::string NameOf(const IsaRow& isa, const KernelRow& kernels);

const Arithmetic& ArithmeticFor(DType sum);
inline const Arithmetic& ArithmeticOf(const KernelRow& row) { return kArithmetics[static_cast<int>(row.arithmetic)]; }
const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic);
inline const FormatKernels& KernelsOf(const KernelRow& row, DType dtype) {
  return row.formats[static_cast<int>(dtype)];
}

// Of k steps, a multiple of k_group or a whole panel: where the step behind them stands, too.
int64_t PanelBytes(const PanelLayout& layout, int64_t k, int64_t width);

// Options', else the environment's, else PreferredIsa. FailedPrecondition where the options' CPU does not have it.
absl::StatusOr<Isa> ChooseIsa(const Options& options);

// What XLA sets on its threads and OpenMP does not, flush-to-zero, is off while this lives: rounding to nearest,
// denormals kept.
class KernelFloatMode {
 public:
  KernelFloatMode();
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
