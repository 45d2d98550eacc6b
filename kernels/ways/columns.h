// Rhs whose columns lie along k.
#ifndef RAGGEMM_KERNELS_WAYS_COLUMNS_H_
#define RAGGEMM_KERNELS_WAYS_COLUMNS_H_

#include "kernels/ways/parts.h"

namespace raggemm {

BlockShape BlocksOfColumns(const Schedule& schedule, int shape, const Window& window, int64_t k);
FetchTarget FetchColumns(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                         NextTile& next_tile);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_WAYS_COLUMNS_H_
