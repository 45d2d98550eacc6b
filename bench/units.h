// What multiplies and adds in a CPU, and at which rate at most: a loop of each unit's own instruction between
// registers, which nothing of the library's kernels is part of.
#ifndef RAGGEMM_BENCH_UNITS_H_
#define RAGGEMM_BENCH_UNITS_H_

#include <array>
#include <cstdint>

#include "raggemm/types.h"

namespace raggemm::bench {

// An instruction that multiplies and adds: of bytes into s32, else into f32.
struct Unit {
  const char* name;
  DType in;                    // of both operands
  double flops;                // of a step
  int64_t steps;               // take about 10 ms
  void (*run)(int64_t steps);  // null where the CPU lacks the unit or the system does not let us have it
};

// The first is f32 fma, which every CPU has in some width.
inline constexpr int kUnits = 5;
const std::array<Unit, kUnits>& Units();

// The first multiplies all types: the fastest sequence of exact products widens what is narrower.
bool Multiplies(const Unit& unit, DType in);

struct UnitRates {
  double fastest;  // GFLOP/s in the best millisecond.
  double overall;  // GFLOP/s of all 10 ms, which whoever else runs on the machine lowers.
};

// Measures a unit that is there, on some number of threads at once.
UnitRates MeasureUnit(const Unit& unit, int threads);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_UNITS_H_
