// The plan of a tile. Tiles with about the same number of rows share it.
#ifndef RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_
#define RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_

#include <array>
#include <cstdint>

namespace raggemm {

// The mode in which the kernels of a tile get rhs. rhs_mode.cc has a table of the modes.
enum class RhsMode : uint8_t {
  kDot,             // For few rows, if rhs is transposed: kernels transpose columns of rhs in registers.
  kGemv,            // Streaming GEMVs for few rows read rhs once, in the order of memory.
  kDirect,          // Every register tile reads rhs in its stored layout.
  kDirectAndStore,  // The first register tile reads rhs and stores a packed panel for the others.
  kPacked,          // A packer packs each panel of rhs first, and all register tiles read the panel.
};

struct TilePlan {
  // Order in which the cache lines of the next block are prefetched. Has an effect only if rhs is stored in rows.
  enum class Order : uint8_t {
    kPanels,  // Prefetches panel by panel. Touches many rows at a time, and reaches the highest memory bandwidth.
    kRows,    // Prefetches row by row. Touches few pages at a time, and delays arithmetic the least.
  };
  RhsMode mode;
  Order prefetch_order;
  uint8_t shape;  // Index of the block shape in kRowsShapes (rhs_layout.h). 0 if rhs is not stored in rows.
};

// Returns the row class of a tile: one for each number of rows up to 32, then one for every four rows.
constexpr int64_t RowClass(int64_t rows) { return rows <= 32 ? rows : 32 + (rows - 29) / 4; }
inline constexpr int64_t kMostRows = 224;
inline constexpr int64_t kRowClasses = RowClass(kMostRows) + 1;
using TilePlans = std::array<TilePlan, kRowClasses>;  // Plans of tiles, indexed by row class.

// The size of the blocks of rhs in a tile, and their order.
struct BlockShape {
  int64_t k;  // Largest number of steps of k in a block. Blocks also end where a KC block ends.
  int64_t n;
  bool k_inner;  // Order of blocks. True: along k first, and lhs is packed for all of k at once. False: along n first.
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_
