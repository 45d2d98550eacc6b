// Writes what no group writes: elements of out outside of all processed groups.
#ifndef RAGGEMM_KERNELS_PLAN_FILL_H_
#define RAGGEMM_KERNELS_PLAN_FILL_H_

#include <cstdint>

#include "kernels/check/checked.h"

namespace raggemm {

// Zeros, or c's values, where no processed group lies. Slices of about 1 MiB, counted over all repetitions of out.
int64_t CountFillTiles(const Checked& checked);
void FillTile(const Checked& checked, int64_t slice);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_FILL_H_
