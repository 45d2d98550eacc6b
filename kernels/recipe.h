// How a tile is computed: where its kernels find rhs, and in which blocks. Decided by a sum of named costs.
#ifndef RAGGEMM_KERNELS_RECIPE_H_
#define RAGGEMM_KERNELS_RECIPE_H_

#include <cstdint>
#include <string>

#include "kernels/tile.h"
#include "raggemm/plan.h"

namespace raggemm {

struct Recipe {
  enum class Source : uint8_t {
    kInPlace,  // every row tile reads rhs as it lies
    kExpand,   // the first row tile reads rhs and stores the strip as it goes, the others read the strip
    kPack,     // strips are packed first; for rhs whose columns lie along k
  } source;
  int64_t block_k;  // at most kChain
  int64_t block_n;
  bool k_inner;  // blocks follow each other along k, not along the columns; lhs is packed for all chains at once
  // How the lines of a block are fetched while the one before is computed.
  enum class Order : uint8_t {
    kStrips,  // strip after strip: from many rows at once, which gets the most out of memory
    kRows,    // row after row: few pages at once, which holds up the sums the least
  } fetch;
};

// For a tile of so many rows and columns, whose unit contracts over k.
Recipe RecipeFor(const Plan& plan, const Window& window, int64_t k);

// The candidates with their costs, `*` at the one that is taken.
std::string CostsOfRecipes(const Plan& plan, const Window& window, int64_t k);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RECIPE_H_
