// The instructions of a CPU that multiply and add, and their highest rates in loops that use only registers.
#pragma once

#include <array>
#include <cstdint>

#include "raggemm/types.h"

namespace raggemm::bench {

// An instruction that multiplies and adds. Sums are s32 for bytes, else f32.
struct Unit {
  const char* name;
  DType in;                    // Type of both operands.
  double flops;                // Multiplications and additions in one step of `run`.
  int64_t steps;               // Steps that take about 10 ms.
  void (*run)(int64_t steps);  // Null if the CPU lacks the unit or Linux forbids AMX.
};

// Units()[0] is f32 fma, or separate multiplications and additions on CPUs without fma.
inline constexpr int kUnits = 5;
const std::array<Unit, kUnits>& Units();

// Returns true if the CPU has the unit and the unit multiplies the type `in`. The first unit multiplies all types,
// after widening.
bool Multiplies(const Unit& unit, DType in);

struct UnitRates {
  double fastest;  // GFLOP/s in the best millisecond.
  double overall;  // Mean GFLOP/s over 10 ms. Other processes lower the mean.
};

UnitRates MeasureUnit(const Unit& unit, int threads);

}  // namespace raggemm::bench
