// The ways in which a tile reads rhs, each a row of Ways (ways.cc) that is made of parts: blocks (rows.cc, columns.cc,
// column_blocks.cc) and strips (in_place.cc, expand.cc, pack.cc, sweep.cc). A tile calls these, and never asks which.
#ifndef RAGGEMM_KERNELS_WAYS_WAY_H_
#define RAGGEMM_KERNELS_WAYS_WAY_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "kernels/microkernel.h"
#include "kernels/recipe.h"
#include "kernels/schedule.h"
#include "kernels/tile.h"

namespace raggemm {

struct Block;      // block.h
struct TilePlace;  // block.h
class NextTile;    // fetch.h

// Where the kernels of a strip find rhs.
struct StripSource {
  bool reads_rhs;  // as it lies; else the strip is packed first, and its kernels read that
  bool stores;     // the first row tile reads rhs and stores the strip in the kernels' layout, the others read that
  bool sweeps;     // kernels take as many columns as there are, row after row
  // Finds a kernel that reads rhs, by the columns of the strip and the rows of the register tile.
  Microkernel* (*kernel)(const Schedule& schedule, int64_t width, int64_t mr);
};

// The columns [col, col + cols) of a block that one kernel computes.
struct Strip {
  int64_t cols;   // that exist
  int64_t width;  // that the kernel computes; the row stride of what is packed
  const StripSource* source;
};

// What is fetched of rhs beside a block: rows of lines, in columns of runs.
//
//     run_lines
//     +-----+-----+-----+   one column of runs beside strips_per_run strips,
//     | 0   | 3   |     |   its lines in equal parts with each row tile of them
//     | 1   | 4   |     |
//     | 2   | 5   |     |   rows, `stride` bytes apart
//     +-----+-----+-----+
struct FetchTarget {
  const char* first = nullptr;
  int64_t rows = 0, stride = 0;  // none: nothing is fetched
  int64_t lines = 0;             // of a row
  int64_t run_lines = 1;
  int64_t strips = 1, strips_per_run = 1;  // of the block beside whose work it is fetched
  int64_t packer_parts = 0;                // shares of a strip's lines that its packer fetches; a row tile fetches one
  bool near = false;                       // as Prefetch has it
};

struct Way {
  const char* name;
  bool (*applies)(const Schedule& schedule, int64_t rows);
  // Has shapes of blocks, the cheapest of which is taken, among those of all ways that apply. Without, it is taken
  // wherever it applies.
  int shapes;
  bool rereads;  // every row tile reads rhs as it lies: what costs depend on
  BlockShape (*blocks)(const Schedule& schedule, int shape, const Window& window, int64_t k);
  Strip (*next_strip)(const Schedule& schedule, const TilePlace& place, int64_t cols_left);
  // next: the block after `block` in this tile, null behind the last.
  FetchTarget (*fetches)(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                         NextTile& next_tile);
};
absl::Span<const Way> Ways();
inline const Way& WayOf(const Recipe& recipe) { return Ways()[recipe.way]; }

// The next strip of a block of this tile, which has cols_left columns from there on.
Strip NextStrip(const Schedule& schedule, const TilePlace& place, int64_t cols_left);

// Chooses for tiles of so many rows and columns.
Recipe RecipeFor(const Schedule& schedule, int64_t rows, int64_t cols);
BlockShape BlocksOf(const Schedule& schedule, const Recipe& recipe, const Window& window, int64_t k);

// Prints the candidates with their costs, `*` at the one that is taken.
std::string CostsOfRecipes(const Schedule& schedule, const Window& window, int64_t k);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_WAYS_WAY_H_
