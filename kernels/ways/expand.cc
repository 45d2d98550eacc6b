// The first row tile reads rhs and stores the strip in the layout of packed ones as it goes; the others read that.
#include "kernels/isa.h"
#include "kernels/ways/parts.h"

namespace raggemm {
namespace {

Microkernel* KernelThatStores(const Schedule& schedule, int64_t /*width*/, int64_t mr) {
  return KernelsOf(*schedule.kernels, schedule.read_rhs.type).expand[mr];
}

constexpr StripSource kStores = {.reads_rhs = true, .stores = true, .sweeps = false, .kernel = KernelThatStores};

}  // namespace

bool StoresAsItReads(const Schedule& schedule) {
  return schedule.kernels->ahead_slice == 0 && !IsSplit(schedule) && schedule.read_rhs.expand == nullptr &&
         KernelThatStores(schedule, 0, schedule.kernels->rows) != nullptr;
}

Strip StoredStrip(const Schedule& schedule, const TilePlace& place, int64_t cols_left) {
  const int64_t width = schedule.kernels->cols;
  const bool stores = width <= cols_left && KernelThatStores(schedule, width, place.rows.Rows(0)) != nullptr;
  return stores ? Strip{width, width, &kStores} : PackedStrip(schedule, place, cols_left);
}

}  // namespace raggemm
