// The instructions of a CPU that multiply and add, and their highest rates. They are measured in loops that use only
// registers.
#ifndef RAGGEMM_BENCH_UNITS_H_
#define RAGGEMM_BENCH_UNITS_H_

#include <array>
#include <cstdint>

#include "raggemm/types.h"

namespace raggemm::bench {

// An instruction that multiplies and adds: bytes into s32, all other types into f32.
struct Unit {
  const char* name;
  DType in;                    // Type of the elements of both operands.
  double flops;                // Multiplications and additions in a step of `run`.
  int64_t steps;               // Number of steps that take about 10 ms.
  void (*run)(int64_t steps);  // Runs steps. Null if the CPU lacks the unit or Linux does not permit it.
};

// Returns all units. The first one is f32 fma, or separate multiplications and additions on CPUs without fma.
inline constexpr int kUnits = 5;
const std::array<Unit, kUnits>& Units();

// Returns true if the CPU has a unit and it multiplies the type `in`. The first unit multiplies all types, because they
// can be widened to f32.
bool Multiplies(const Unit& unit, DType in);

struct UnitRates {
  double fastest;  // GFLOP/s in the best millisecond.
  double overall;  // GFLOP/s over all 10 ms. Other processes lower it.
};

UnitRates MeasureUnit(const Unit& unit, int threads);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_UNITS_H_
