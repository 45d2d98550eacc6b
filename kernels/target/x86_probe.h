// Probes an x86 CPU and its operating system. A test that simulates other CPUs replaces x86_cpuid.cc.
#ifndef RAGGEMM_KERNELS_TARGET_X86_PROBE_H_
#define RAGGEMM_KERNELS_TARGET_X86_PROBE_H_

#include "absl/strings/string_view.h"
#include "raggemm/cpu.h"

namespace raggemm {

// Return the reason why this machine lacks an instruction set, or null.
const char* MissingForAvx2();
const char* MissingForAvx512();
const char* MissingForAvx512Vnni();
const char* MissingForAvxVnni();

// Return the same for the units that multiply bf16 or bytes (x86_units.cc). MissingForAmx asks the operating system to
// permit tiles for all threads of the process.
const char* MissingForAvx512Bf16();
const char* MissingForAmx();
// Returns true if the CPU has AMX_TILE, but not AMX_INT8.
bool LacksTilesOfBytes();

// Returns the row of MeasuredCpus with this vendor, family and model of CPUID, or null.
const Cpu* MeasuredCpuOf(absl::string_view vendor, unsigned family, unsigned model);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_TARGET_X86_PROBE_H_
