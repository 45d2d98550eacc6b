// Every row tile reads rhs as it lies.
#include "kernels/isa.h"
#include "kernels/ways/parts.h"

namespace raggemm {
namespace {

Microkernel* KernelInPlace(const Schedule& schedule, int64_t width, int64_t mr) {
  const DirectKernel(&by_width)[2] = KernelsOf(*schedule.kernels, schedule.read_rhs.type).direct[mr];
  return by_width[by_width[0].nr == width ? 0 : 1].run;
}

constexpr StripSource kInPlace = {.reads_rhs = true, .stores = false, .sweeps = false, .kernel = KernelInPlace};

}  // namespace

bool ReadsInPlace(const Schedule& schedule) {
  return schedule.kernels->ahead_slice == 0 && !IsSplit(schedule) && schedule.read_rhs.expand == nullptr &&
         KernelsOf(*schedule.kernels, schedule.read_rhs.type).direct[1][1].run != nullptr;
}

Strip StripInPlace(const Schedule& schedule, const TilePlace& place, int64_t cols_left) {
  for (const DirectKernel& kernel : KernelsOf(*schedule.kernels, schedule.read_rhs.type).direct[place.rows.Rows(0)]) {
    if (kernel.run != nullptr && kernel.nr <= cols_left) return {kernel.nr, kernel.nr, &kInPlace};
  }
  return PackedStrip(schedule, place, cols_left);
}

}  // namespace raggemm
