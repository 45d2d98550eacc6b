// The interface to an architecture: its instruction sets and their kernels, the CPU and its floating-point modes. CMake
// builds the files of one architecture: x86*.cc, aarch64.cc, or generic.cc, which uses only standard C++.
#ifndef RAGGEMM_KERNELS_TARGET_TARGET_H_
#define RAGGEMM_KERNELS_TARGET_TARGET_H_

#include <cfenv>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/isa/microkernel.h"
#include "raggemm/cpu.h"
#include "raggemm/types.h"

namespace raggemm {

// An instruction set.
struct IsaRow {
  Isa isa;
  const char* name;
  // Returns what this CPU or its operating system lacks for the instruction set. Null if it lacks nothing.
  const char* (*missing)();
  absl::Span<const KernelRow> kernels;
  Isa base;  // Instruction set for the arithmetics without kernels here. Itself if it has kernels for all.
  const Dequantizers* dequantizers = nullptr;  // Null: those of `base`.
  bool usable() const { return missing() == nullptr; }
};

// Returns all instruction sets of the library, also those that this CPU lacks. The best one is first. An Isa is the
// index of a row, counted from the last row, which is Isa::kScalar.
absl::Span<const IsaRow> IsaRows();

// Returns the rule for bf16 with bf16 on CPUs without a unit for it: the fastest rule for all CPUs of this
// architecture.
ArithmeticId Bf16SumsWithoutUnit();

// Returns this CPU's row of MeasuredCpus. Null if it has none.
const Cpu* MeasuredRow();
// Returns the size of a core's cache of level 1 (data) or 2 in bytes. 0 or less if a virtual machine hides it.
int64_t CacheBytes(int level);

// Sets the floating-point mode of a thread, and restores it at the end. Results are rounded to nearest. Denormals are
// flushed or kept. XLA's threads flush them by default, and those of OpenMP do not. If the CPU cannot flush after
// rounding (Arithmetic::flushes), kernels flush.
class FloatMode {
 public:
  explicit FloatMode(bool flushes = false);
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  // fenv_t has the x86 register at offset 28. There, int4 with 64 rows would take 1.09 times as long (Zen 5).
  union {
    unsigned control;
    std::fenv_t environment;
  } saved_;
};

// Size of huge pages on most CPUs. Memory of any other size works, but is slower.
inline constexpr size_t kHugePageBytes = 2 << 20;

// Orders nontemporal stores before all stores that follow.
void FenceStores();

// Tells the CPU that this thread waits in a loop.
void Pause();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_TARGET_TARGET_H_
