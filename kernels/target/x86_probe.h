// Asks an x86 CPU and its operating system what they have. A test that runs as on another CPU links its own functions
// in place of x86_cpuid.cc.
#ifndef RAGGEMM_KERNELS_TARGET_X86_PROBE_H_
#define RAGGEMM_KERNELS_TARGET_X86_PROBE_H_

#include "absl/strings/string_view.h"
#include "raggemm/cpu.h"

namespace raggemm {

// Says what is missing; null: nothing.
const char* MissingForAvx2();
const char* MissingForAvx512();
const char* MissingForAvx512Vnni();
const char* MissingForAvxVnni();

// Says what is missing for the units of x86_units.cc; null: nothing. That for AMX asks the operating system for the
// tiles, for all threads of the process.
const char* MissingForAvx512Bf16();
const char* MissingForAmx();
bool LacksTilesOfBytes();  // has AMX_TILE, but not AMX_INT8

// The one of MeasuredCpus with this vendor, family and model, as CPUID has them; null: none.
const Cpu* MeasuredCpuOf(absl::string_view vendor, unsigned family, unsigned model);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_TARGET_X86_PROBE_H_
