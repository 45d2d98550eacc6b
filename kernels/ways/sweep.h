// Sweeps, of rows and of column blocks.
#ifndef RAGGEMM_KERNELS_WAYS_SWEEP_H_
#define RAGGEMM_KERNELS_WAYS_SWEEP_H_

#include "kernels/ways/parts.h"

namespace raggemm {

// Whether sweeps take tiles of so few rows.
bool Sweeps(const Schedule& schedule, int64_t rows);
BlockShape BlocksOfSweeps(const Schedule& schedule, int shape, const Window& window, int64_t k);
// Fetches what lies kSweepAhead further on in memory.
FetchTarget FetchAhead(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                       NextTile& next_tile);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_WAYS_SWEEP_H_
