// What this CPU is and has. A test that runs as on another CPU links other functions for this header.
#ifndef RAGGEMM_KERNELS_CPUID_H_
#define RAGGEMM_KERNELS_CPUID_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "raggemm/cpu.h"

namespace raggemm {

// What is missing; null: nothing.
const char* MissingForAvx2();
const char* MissingForAvx512();
const char* MissingForAvx512Vnni();
const char* MissingForAvxVnni();

// Of MeasuredCpus, the one of CPUID's vendor, family and model; null: none. Of the table in cpu.cc.
const Cpu* MeasuredCpuOf(absl::string_view vendor, unsigned family, unsigned model);
const Cpu* MeasuredRow();       // of MeasuredCpus; null: this CPU is none of them
int64_t CacheBytes(int level);  // of a core, level 1 (data) or 2; not above 0 where a virtual machine hides it

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CPUID_H_
