// Decisions that all tiles of about the same number of rows share.
#ifndef RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_
#define RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_

#include <array>
#include <cstdint>

namespace raggemm {

// How the kernels of a tile get rhs. Each mode has a row in rhs_mode.cc.
enum class RhsMode : uint8_t {
  kDot,             // Few rows by stored columns of rhs: columns are transposed in registers.
  kGemv,            // Few rows by stored rows of rhs: rhs streams from memory once, from end to end.
  kDirect,          // Every register tile reads rhs in its stored layout.
  kDirectAndStore,  // The first register tile reads rhs and stores a packed strip. The others read the strip.
  kPacked,          // A strip is packed first, and all register tiles read it.
};

struct TilePlan {
  // Order in which the lines of the next block are prefetched.
  enum class Order : uint8_t {
    kPanels,  // Panel by strip: many rows at once, which gets the most out of memory.
    kRows,    // Row by row: few pages at once, which delays the sums the least.
  };
  RhsMode mode;
  Order prefetch;
  uint8_t shape;  // Index of the block shape among those of the rhs layout (rhs_layout.h).
};

// Returns the class of a number of rows: one class for each number up to 32, then one for each four.
constexpr int64_t RowClass(int64_t rows) { return rows <= 32 ? rows : 32 + (rows - 29) / 4; }
inline constexpr int64_t kMostRows = 224;  // Rows of the tallest tile.
inline constexpr int64_t kRowClasses = RowClass(kMostRows) + 1;
using TilePlans = std::array<TilePlan, kRowClasses>;  // Set for the classes that occur.

// Size of the blocks of rhs that a tile goes through.
struct BlockShape {
  int64_t k;  // At most KernelChoice::panel.
  int64_t n;
  bool k_inner;  // True: the next block is further along k, and lhs is packed for all of k at once. False: along n.
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_TILE_PLAN_H_
