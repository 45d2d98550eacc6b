#pragma once

#include "absl/strings/string_view.h"
#include "raggemm/cpu.h"

namespace raggemm {

// Each MissingForNAME returns what the CPU or the operating system lacks for NAME, or null.
const char* MissingForAvx2();
const char* MissingForAvx512();
const char* MissingForAvx512Vnni();
const char* MissingForAvxVnni();

// MissingForAmx also asks the operating system to permit tiles for all threads of the process.
const char* MissingForAvx512Bf16();
const char* MissingForAmx();
bool LacksTilesOfBytes();

const Cpu* MeasuredCpuOf(absl::string_view vendor, unsigned family, unsigned model);

}  // namespace raggemm
