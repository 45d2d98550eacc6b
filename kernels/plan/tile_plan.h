// The plan of a tile. Tiles with about the same number of rows share it.
#ifndef RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_
#define RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_

#include <array>
#include <cstdint>

namespace raggemm {

// The mode in which the kernels of a tile get rhs. rhs_mode.cc has a table of them.
enum class RhsMode : uint8_t {
  kDot,             // Few rows, rhs transposed: kernels transpose its columns in registers.
  kGemv,            // Few rows: rhs streams from memory once.
  kDirect,          // Every register tile reads rhs in its stored layout.
  kDirectAndStore,  // The first register tile reads rhs and stores a packed panel for the others.
  kPacked,          // All register tiles read a panel that is packed before.
};

struct TilePlan {
  // Order of prefetching the lines of the next block. Only the layout of stored rows uses it.
  enum class Order : uint8_t {
    kPanels,  // Panel by panel: reads many rows at once, and gets the most out of memory.
    kRows,    // Row by row: touches few pages at once, and delays arithmetic the least.
  };
  RhsMode mode;
  Order prefetch_order;
  uint8_t shape;  // Index of the block shape of the layout (rhs_layout.h).
};

// Returns the row class of a tile: one for each number of rows up to 32, then one for every four rows.
constexpr int64_t RowClass(int64_t rows) { return rows <= 32 ? rows : 32 + (rows - 29) / 4; }
inline constexpr int64_t kMostRows = 224;
inline constexpr int64_t kRowClasses = RowClass(kMostRows) + 1;
using TilePlans = std::array<TilePlan, kRowClasses>;  // By row class. Classes without tiles have no plan.

// The size of the blocks of rhs in a tile, and their order.
struct BlockShape {
  int64_t k;  // Steps of k, at most KernelChoice::kc.
  int64_t n;
  bool k_inner;  // True: the next block is along k, and lhs is packed for all of k at once. False: it is along n.
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_
