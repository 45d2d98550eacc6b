// Quantizes the rows of a tile of lhs (rounded rows, raggemm/grouped_gemm.h), and describes stretches to the kernels.
#pragma once

#include <cstdint>

#include "kernels/check/quantization.h"
#include "kernels/isa/microkernel.h"
#include "kernels/plan/block.h"
#include "kernels/plan/quant_params.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/scratch.h"

namespace raggemm {

// Quantizes rows of f16, bf16 or f32 in blocks.
class RowRounder {
 public:
  // `kernels` are those of rounded rows, and `floats` those of f32.
  RowRounder(const KernelRow& kernels, const KernelRow& floats, DType dtype)
      : kernels_(&kernels), floats_(&floats), dtype_(dtype) {}

  // Quantizes `count` elements of a row from step k on, where a block starts. The last block may be shorter. Stores the
  // codes, and the scale of each block. `codes` has room for whole vectors.
  void Round(const char* row, int64_t k, int64_t count, int64_t block, int8_t* codes, float* scales) const;
  // Returns the scale of the block of `count` elements from step k on.
  float ScaleOf(const char* row, int64_t k, int64_t count) const;
  // Quantizes a part of a block.
  void RoundPart(const char* row, int64_t k, int64_t count, float scale, int8_t* codes) const;

 private:
  const float* Read(const char* row, int64_t k, int64_t count, float* values) const;

  const KernelRow* kernels_;
  const KernelRow* floats_;
  DType dtype_;
};

class RoundedRows {
 public:
  // A word block may have stretches of kRhsBlockStep steps, and a part of a stretch at its start and at its end.
  static constexpr int64_t kMostPieces = kWordBlockKc / kRhsBlockStep + 2;

  RoundedRows(const TileContext& context, const TileTask& task, const Scratch& scratch);

  bool is_used() const { return context_.call.products.rounds_lhs; }

  // Quantizes the KC block that `block` begins, and stores its codes in packed_lhs. Must be called for the KC
  // blocks of a tile in the order of k.
  void Pack(const Block& block, char* packed_lhs) const;

  // Sets the arguments of kernels that are the same for all tiles of a block, of a panel, or of a register tile.
  void BindBlock(const Block& block);
  void BindPanel(const Block& block, const Panel& panel, int64_t col);
  const Stretches* BindTile(int64_t row) {
    stretches_.row_scales = row_scales_ + row;
    stretches_.row_sums = row_sums_ + row;
    return &stretches_;
  }

 private:
  // Returns the first entry of a KC block in Scratch::piece_scales and piece_sums.
  int64_t FirstPiece(const Block& block) const;
  void CodesOf(const Block& block, int64_t row, int8_t* codes, float* scales) const;
  // Sets rows[i] to the row of scales or zero points of piece i of a block, counted from the row of the first piece.
  void FindRows(const Block& block, const QuantParams& params, uint16_t* rows) const;
  // Lets GEMVs read the scales of the block from memory. Returns false if they cannot. Converting them to floats first
  // took 15 % of the time of one row of int4 (2048x768 in L2, one core of Zen 4).
  bool BindStoredScales(const Block& block, const Panel& panel, int64_t col);
  // Read the scales and the zero points of the panel's columns, from the stored position `at` on.
  void ReadScales(const Block& block, const Panel& panel, const StoredPosition& at, float* scales) const;
  void ReadZeros(const Block& block, const Panel& panel, const StoredPosition& at, int32_t* zeros) const;
  // Returns the stored position of the scale and zero point of element (k, col) of rhs.
  StoredPosition PositionAt(const Block& block, int64_t k, int64_t col) const;
  void PackRow(const Block& block, int64_t row, char* to, int64_t group_step) const;

  const TileContext& context_;
  const TileTask& task_;
  const Scratch& scratch_;
  const RowRounder rounder_;
  const int64_t stride_;  // Rows of the tile, rounded up to whole register tiles.
  Stretches stretches_{};
  uint16_t scale_rows_[kMostPieces], zero_rows_[kMostPieces];
  const float* row_scales_ = nullptr;
  const int32_t* row_sums_ = nullptr;
};

// Returns the largest number of pieces in a KC block.
int64_t PiecesOfKc(const TileContext& context);

}  // namespace raggemm
