// The instructions of a CPU that multiply and add, and their highest rates in loops that use only registers.
#ifndef RAGGEMM_BENCH_UNITS_H_
#define RAGGEMM_BENCH_UNITS_H_

#include <array>
#include <cstdint>

#include "raggemm/types.h"

namespace raggemm::bench {

// An instruction that multiplies and adds. Sums are s32 for products of bytes, and f32 for all other types.
struct Unit {
  const char* name;
  DType in;                    // Type of the elements of both operands.
  double flops;                // Number of multiplications and additions in one step of `run`.
  int64_t steps;               // Number of steps that take about 10 ms.
  void (*run)(int64_t steps);  // Runs `steps` steps. Null if the CPU lacks the unit or Linux forbids AMX.
};

// Units()[0] is f32 fma, or separate multiplications and additions on CPUs without fma.
inline constexpr int kUnits = 5;
const std::array<Unit, kUnits>& Units();

// Returns true if the CPU has the unit and the unit multiplies the type `in`. The first unit multiplies all types,
// because they can be widened to f32.
bool Multiplies(const Unit& unit, DType in);

struct UnitRates {
  double fastest;  // GFLOP/s in the best millisecond.
  double overall;  // Mean GFLOP/s of the whole measurement, 10 ms. Other processes lower the mean.
};

UnitRates MeasureUnit(const Unit& unit, int threads);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_UNITS_H_
