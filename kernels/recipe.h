// How tiles are computed: where their kernels find rhs, and in which blocks. Decided by a sum of named costs, once for
// all tiles of about as many rows.
#ifndef RAGGEMM_KERNELS_RECIPE_H_
#define RAGGEMM_KERNELS_RECIPE_H_

#include <array>
#include <cstdint>
#include <string>

namespace raggemm {

struct PlanData;
struct Window;

struct Recipe {
  enum class Source : uint8_t {
    kSweep,    // kernels read few rows of rhs, from end to end, then the next: few rows of lhs whose rhs streams
    kInPlace,  // every row tile reads rhs as it lies
    kExpand,   // the first row tile reads rhs and stores the strip as it goes, the others read the strip
    kPack,     // strips are packed first; for rhs whose columns lie along k, kernels that pack ahead, and what is split
  } source;
  // How the lines of a block are fetched while the one before is computed.
  enum class Order : uint8_t {
    kStrips,  // strip after strip: from many rows at once, which gets the most out of memory
    kRows,    // row after row: few pages at once, which holds up the sums the least
  } fetch;
  uint8_t shape;  // of its blocks: a row of kShapes in recipe.cc; none with kPack
};

// Exact up to 32 rows, where one more may be another recipe, then in steps of four.
constexpr int64_t RowClass(int64_t rows) { return rows <= 32 ? rows : 32 + (rows - 29) / 4; }
inline constexpr int64_t kMostRows = 224;  // of a tile
inline constexpr int64_t kRowClasses = RowClass(kMostRows) + 1;
using Recipes = std::array<Recipe, kRowClasses>;  // those of tiles that there are

// For tiles of so many rows and columns.
Recipe RecipeFor(const PlanData& plan, int64_t rows, int64_t cols);

// The blocks of a tile whose unit contracts over k.
struct BlockShape {
  int64_t k;  // at most PlanData::panel
  int64_t n;
  bool k_inner;  // blocks follow each other along k, not along the columns; all panels of lhs are packed at once
};
BlockShape BlocksOf(const PlanData& plan, const Recipe& recipe, const Window& window, int64_t k);

// The candidates with their costs, `*` at the one that is taken.
std::string CostsOfRecipes(const PlanData& plan, const Window& window, int64_t k);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RECIPE_H_
