// Rhs in column blocks.
#ifndef RAGGEMM_KERNELS_WAYS_COLUMN_BLOCKS_H_
#define RAGGEMM_KERNELS_WAYS_COLUMN_BLOCKS_H_

#include "kernels/ways/parts.h"

namespace raggemm {

// A panel of one, which is a run of memory, and what is behind it along k follows it there.
BlockShape BlocksOfColumnBlocks(const Schedule& schedule, int shape, const Window& window, int64_t k);
// Fetches as many bytes as this block has, of the next one or, along k, further on in memory, where the blocks of a
// tile follow each other.
FetchTarget FetchColumnBlocks(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                              NextTile& next_tile);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_WAYS_COLUMN_BLOCKS_H_
