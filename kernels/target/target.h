// Everything that knows an architecture: its instruction sets and their kernels, the CPU and its modes. CMake builds
// the files of one: x86*.cc, aarch64.cc, or generic.cc, which is C++ alone.
#ifndef RAGGEMM_KERNELS_TARGET_TARGET_H_
#define RAGGEMM_KERNELS_TARGET_TARGET_H_

#include <cfenv>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/isa/microkernel.h"
#include "raggemm/cpu.h"
#include "raggemm/types.h"

namespace raggemm {

struct IsaRow {
  Isa isa;
  const char* name;
  const char* (*missing)();  // says what this CPU or its operating system lacks for it; null: nothing
  absl::Span<const KernelRow> kernels;
  Isa base;  // computes the arithmetics of which it has no kernels; itself where it has all
  const Dequantizers* dequantizers = nullptr;  // null: its base's
  bool usable() const { return missing() == nullptr; }
};

// All that the library was built with, whatever this CPU can run, best first. An Isa counts rows from the last one,
// which is Isa::kScalar.
absl::Span<const IsaRow> IsaRows();

// How CPUs without a unit for it sum bf16 with bf16: what costs least on all of this architecture.
ArithmeticId Bf16SumsWithoutUnit();

// The one of MeasuredCpus that this CPU is; null: none of them.
const Cpu* MeasuredRow();
// Bytes of a core's cache of level 1 (data) or 2; not above 0 where a virtual machine hides them.
int64_t CacheBytes(int level);

// Rounds to nearest while this lives, and keeps denormals or flushes them, whatever the thread has been told: XLA's
// threads flush them, OpenMP's do not. Where the CPU cannot flush as Arithmetic::flushes has it, kernels do.
class FloatMode {
 public:
  explicit FloatMode(bool flushes = false);
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  // With x86's register where fenv_t has it, 28 bytes behind, int4 of 64 rows takes 1.09 times as long (Zen 5).
  union {
    unsigned control;
    std::fenv_t environment;
  } saved_;
};

// What huge pages are on most CPUs. Memory that is no whole number of them is all right, and slower.
inline constexpr size_t kHugePageBytes = 2 << 20;

// Orders stores that went past the caches before all that follow.
void FenceStores();

// Tells the CPU that this thread waits in a loop.
void Pause();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_TARGET_TARGET_H_
