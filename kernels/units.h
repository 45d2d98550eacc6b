// What units need of this CPU and its operating system. A test that has no unit links plain C++ in its place, and other
// functions for this header.
#ifndef RAGGEMM_KERNELS_UNITS_H_
#define RAGGEMM_KERNELS_UNITS_H_

#include "raggemm/types.h"

namespace raggemm {

// What is missing; null: nothing. That for AMX asks the operating system for the tiles, for all threads of the process.
const char* MissingForAvx512Bf16();
const char* MissingForAmx();
bool LacksTilesOfBytes();  // has AMX_TILE, but not AMX_INT8

Isa BaseOfUnits();

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_UNITS_H_
