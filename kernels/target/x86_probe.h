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

// MissingForAmx asks the operating system to permit tiles for all threads of the process.
const char* MissingForAvx512Bf16();
const char* MissingForAmx();
bool LacksTilesOfBytes();

const Cpu* MeasuredCpuOf(absl::string_view vendor, unsigned family, unsigned model);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_TARGET_X86_PROBE_H_
