// The interface to an architecture: instruction sets and kernels, CPU, floating-point modes. CMake builds x86*.cc for
// x86-64. For aarch64 it builds aarch64.cc and portable.cc, and for any other CPU generic.cc and portable.cc.
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
  // Returns what the CPU or the operating system lacks for the instruction set. Null if it lacks nothing.
  const char* (*missing)();
  absl::Span<const KernelRow> kernels;
  // Instruction set whose kernels compute the arithmetics that `kernels` lacks. The base of the scalar instruction set
  // is itself.
  Isa base;
  const Dequantizers* dequantizers = nullptr;  // Null: the instruction set uses the dequantizers of `base`.
  bool usable() const { return missing() == nullptr; }
};

// Returns all instruction sets of the library, the best one first. The value of an Isa is the position of its row
// counted from the end: the last row is Isa::kScalar, with the value 0.
absl::Span<const IsaRow> IsaRows();

// Returns the numeric rule for bf16 with bf16 that is fastest on CPUs of this architecture without instructions for
// bf16.
ArithmeticId Bf16SumsWithoutUnit();

// Returns the row of MeasuredCpus for this CPU. Null if this CPU was not measured.
const Cpu* MeasuredRow();
// Returns the size in bytes of the L1 data cache (level 1) or the L2 cache (level 2) of a core. Returns 0 or less if
// the system does not report the size.
int64_t CacheBytes(int level);

// Sets the float mode of this thread: round to nearest, and flush or keep denormals. The destructor restores the
// previous mode. XLA's threads flush by default, and those of OpenMP do not. If the CPU cannot flush after rounding
// (Arithmetic::flushes), kernels flush.
class FloatMode {
 public:
  explicit FloatMode(bool flushes = false);
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  // `control` holds the register MXCSR on x86. fenv_t also has a field for MXCSR, at offset 28, but saving MXCSR there
  // made int4 with 64 rows take 1.09 times as long (Zen 5).
  union {
    unsigned control;
    std::fenv_t environment;
  } saved_;
};

// Size of huge pages on most CPUs. A wrong size only costs speed.
inline constexpr size_t kHugePageBytes = 2 << 20;

// Orders nontemporal stores before all stores that follow.
void FenceStores();

void Pause();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_TARGET_TARGET_H_
