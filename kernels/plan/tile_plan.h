#pragma once

#include <array>
#include <cstdint>

namespace raggemm {

// The mode in which the kernels of a tile get rhs. rhs_mode.cc has the table.
enum class RhsMode : uint8_t {
  kDot,             // For few rows and a transposed rhs: kernels transpose columns of rhs in registers.
  kGemv,            // Streaming GEMVs for few rows read rhs once, in the order of memory.
  kDirect,          // Every register tile reads rhs in its stored layout.
  kDirectAndStore,  // The first register tile reads rhs and stores a packed panel for the others.
  kPacked,          // A packer packs each panel of rhs, and all register tiles read the panel.
};

struct TilePlan {
  // Order of prefetches of the next block. No effect unless rhs is stored in rows.
  enum class Order : uint8_t {
    kPanels,  // Panel by panel. Touches many rows at a time, and reaches the highest memory bandwidth.
    kRows,    // Row by row. Touches few pages at a time, and delays arithmetic the least.
  };
  RhsMode mode;
  Order prefetch_order;
  uint8_t shape;  // Index in kRowsShapes (rhs_layout.h). 0 if rhs is not stored in rows.
};

// Returns the row class of a tile. Tiles of one class share a plan. Up to 32 rows, each number of rows is a class, then
// every four.
constexpr int64_t RowClass(int64_t rows) { return rows <= 32 ? rows : 32 + (rows - 29) / 4; }
inline constexpr int64_t kMostRows = 224;
inline constexpr int64_t kRowClasses = RowClass(kMostRows) + 1;
using TilePlans = std::array<TilePlan, kRowClasses>;  // Indexed by row class.

struct BlockShape {
  int64_t k;  // Largest number of steps of k in a block. Blocks also end where a KC block ends.
  int64_t n;
  bool k_inner;  // Order of blocks. True: along k first, and lhs is packed for all of k at once. False: along n first.
  // True: a block of n columns has all of k, as if it were one KC block. Kernels add the chains. Narrower blocks end
  // where a KC block ends.
  bool has_all_k = false;
};

}  // namespace raggemm
