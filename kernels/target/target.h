// The interface to an architecture. CMake builds x86*.cc for x86-64. For aarch64 it builds aarch64.cc and portable.cc,
// and for any other CPU generic.cc and portable.cc.
#pragma once

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
  // Returns what the CPU or the operating system lacks for the instruction set, or null.
  const char* (*missing)();
  absl::Span<const KernelRow> kernels;
  // Instruction set to use for arithmetics that `kernels` lacks. The scalar instruction set is its own base.
  Isa base;
  const Dequantizers* dequantizers = nullptr;  // Null: those of `base`.
  bool usable() const { return missing() == nullptr; }
};

// Returns all instruction sets of the library, best first. The last one is Isa::kScalar, which is 0. The one before it
// is Isa{1}, and so on.
absl::Span<const IsaRow> IsaRows();

// Returns the fastest rule for bf16 by bf16 on CPUs without bf16 instructions.
ArithmeticId Bf16SumsWithoutUnit();

// Returns the row of MeasuredCpus for this CPU, or null.
const Cpu* MeasuredRow();
// Returns the bytes of a core's L1 data cache (level 1) or L2 cache (level 2). 0 or less: unknown.
int64_t CacheBytes(int level);

// Sets this thread's float mode: round to nearest, and flush or keep denormals. The destructor restores the previous
// mode. XLA's threads flush by default, and OpenMP's do not. If the CPU cannot flush after rounding
// (Arithmetic::flushes), kernels do.
class FloatMode {
 public:
  explicit FloatMode(bool flushes = false);
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  // `control` is MXCSR on x86. fenv_t also has a field for it, but saving MXCSR there made int4 with 64 rows take 1.09
  // times as long (Zen 5).
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
