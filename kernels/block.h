// How a tile is walked through: blocks of rhs, one after the other.
//
//     rhs of a group, K x N            a block's strips        of each strip, with each row tile of lhs
//     +--------+--------+  chain 0     +--+--+--+--+
//     | 0 | 2  | tile   |  256 rows    |  |  |  |  |          the microkernel's chain += a * b
//     | 1 | 3  |        |              +--+--+--+--+
//     +--------+--------+  chain 1      nr
//     | 4 ...  |        |
//
// Blocks cut chains and columns anywhere: an unfinished chain waits in scratch, so its bits do not change.
#ifndef RAGGEMM_KERNELS_BLOCK_H_
#define RAGGEMM_KERNELS_BLOCK_H_

#include <algorithm>
#include <cstdint>

#include "kernels/microkernel.h"
#include "kernels/recipe.h"
#include "kernels/tile.h"
#include "raggemm/plan.h"

namespace raggemm {

// Row tiles of at most max_rows, as equal as can be: 16 rows are 8 + 8, not 14 + 2.
struct RowTiles {
  RowTiles(int64_t rows, int64_t max_rows) : count(CeilDiv(rows, max_rows)), each(rows / count), taller(rows % count) {}
  int64_t Begin(int64_t i) const { return each * i + std::min(taller, i); }
  int64_t Rows(int64_t i) const { return each + (i < taller); }
  int64_t count, each, taller;  // the first `taller` have a row more
};

// Which unit a tile belongs to, where in its result it lies, and how it is computed.
struct TilePlace {
  TilePlace(const Plan& plan, int64_t tile);

  Unit unit;
  Matrix out;
  Window window;
  RowTiles rows;
  Recipe recipe;
};

// Rows [k, k + steps) and columns [col, col + cols) of rhs; columns count from the tile's first.
struct Block {
  Unit term;              // the tile's unit, or one of the replicas that it sums
  int64_t first_replica;  // that has a contraction
  Matrix lhs, rhs;
  int64_t k, steps;
  int64_t col, cols;
  bool first_chain, last_chain;  // of all terms

  bool start() const { return k % kChain == 0; }
  bool finish() const { return (k + steps) % kChain == 0 || k + steps == rhs.rows; }
};

// False where there is none: an empty contraction, or the end.
bool FirstBlock(const Plan& plan, const TilePlace& place, Block& block);
bool NextBlock(const Plan& plan, const TilePlace& place, Block& block);

// The columns [col, col + cols) of a block that one kernel computes.
struct Strip {
  int64_t cols;   // that exist
  int64_t width;  // that the kernel computes; the row stride of what is packed
  enum class From : uint8_t { kRhs, kRhsAndPack, kPacked } from;
};
Strip NextStrip(const Plan& plan, const TilePlace& place, int64_t cols_left);

// What is fetched beside the work on a block, in equal parts with each strip and row tile: the block that this thread
// probably computes next, be it of another tile and group. Recipe::fetch says in which order.
class Fetch {
 public:
  // next: the block after `block` in this tile, null behind the last.
  Fetch(const Plan& plan, const TilePlace& place, int64_t tile, const Block& block, const Block* next);
  Prefetch* ForPacker() { return Next(packer_parts_); }
  Prefetch* ForKernel() { return Next(1); }

 private:
  // Without a division: finding each part from its number instead, 165 and not 200 GFLOP/s for gradients of 16 rows at
  // 2880x2880 f32 (two cores of Emerald Rapids).
  Prefetch* Next(int64_t parts) {
    if (parts_left_ <= 0) StartColumn();
    parts_left_ -= parts;
    at_.count = parts * lines_per_part_;
    for (due_ += parts * lines_over_; due_ >= column_parts_; due_ -= column_parts_) ++at_.count;
    return &at_;
  }
  void StartColumn();

  Prefetch at_{};
  int64_t parts_left_ = 0, column_parts_ = 1, lines_per_part_ = 0, lines_over_ = 0, due_ = 0;  // of a column
  const char* column_ = nullptr;   // the first line of the column of runs that comes next
  int64_t lines_left_ = 0;         // of its row, from there on
  int64_t run_lines_ = 1;          // of the piece of a row that is fetched at once
  int64_t rows_ = 0, stride_ = 0;  // of the next block as it lies in memory; bytes
  int64_t packer_parts_, parts_;   // of a strip: those that its packer fetches, all
  int64_t strips_left_, strips_per_run_ = 1;
};

// What is fetched of lhs, a few lines before each kernel: the rows that the next chain packs, or the next tile's first
// chain. Without it, and without fetching the lines of out, 268 instead of 292 GFLOP/s at 512 rows of 2048x768 f32.
class LhsFetch {
 public:
  // At the first block of a chain.
  void Aim(const Plan& plan, const TilePlace& place, int64_t tile, const Block& block);
  // Once for each kernel.
  void Advance() {
    for (int64_t i = std::min(lines_per_kernel_, lines_left_); i > 0; --i) {
      __builtin_prefetch(line_, 0, 2);
      line_ += 64;
      if (--row_left_ != 0) continue;
      row_left_ = lines_per_row_;
      line_ += row_skip_;
    }
    lines_left_ -= lines_per_kernel_;
  }

 private:
  const char* line_ = nullptr;
  int64_t lines_left_ = 0, lines_per_kernel_ = 0;
  int64_t row_left_ = 0, lines_per_row_ = 0;
  int64_t row_skip_ = 0;  // bytes
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_BLOCK_H_
