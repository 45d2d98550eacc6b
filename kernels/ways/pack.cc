// Strips are packed before kernels read them: what is quantized or split, and what kernels cannot read as it lies.
// Kernels that pack ahead do it beside the sums of the strip before.
#include <algorithm>

#include "kernels/ways/parts.h"

namespace raggemm {
namespace {

constexpr StripSource kPacked = {.reads_rhs = false, .stores = false, .sweeps = false, .kernel = nullptr};

}  // namespace

bool PacksFirst(const Schedule& schedule) { return !ReadsInPlace(schedule) && !StoresAsItReads(schedule); }

Strip PackedStrip(const Schedule& schedule, const TilePlace& /*place*/, int64_t cols_left) {
  const int64_t width = schedule.kernels->cols;
  return {std::min(width, cols_left), width, &kPacked};
}

}  // namespace raggemm
