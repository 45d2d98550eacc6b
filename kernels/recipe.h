// What is decided for all tiles of about as many rows: the way that they take, its blocks, the order of fetching.
#ifndef RAGGEMM_KERNELS_RECIPE_H_
#define RAGGEMM_KERNELS_RECIPE_H_

#include <array>
#include <cstdint>

namespace raggemm {

struct Recipe {
  // How the lines of a block are fetched while the one before is computed.
  enum class Order : uint8_t {
    kStrips,  // strip after strip: from many rows at once, which gets the most out of memory
    kRows,    // row after row: few pages at once, which holds up the sums the least
  };
  uint8_t way;  // its row in Ways (ways/way.h)
  Order fetch;
  uint8_t shape;  // of its blocks, among those that the way has
};

// Exact up to 32 rows, where one more may be another recipe, then in steps of four.
constexpr int64_t RowClass(int64_t rows) { return rows <= 32 ? rows : 32 + (rows - 29) / 4; }
inline constexpr int64_t kMostRows = 224;  // of a tile
inline constexpr int64_t kRowClasses = RowClass(kMostRows) + 1;
using Recipes = std::array<Recipe, kRowClasses>;  // those of tiles that there are

// The blocks of a tile whose unit contracts over k.
struct BlockShape {
  int64_t k;  // at most Schedule::panel
  int64_t n;
  bool k_inner;  // blocks follow each other along k, not along the columns; all panels of lhs are packed at once
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RECIPE_H_
