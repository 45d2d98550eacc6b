// The modes of rhs. A mode is how kernels get rhs: dot, GEMV, direct, direct and store, packed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/isa/microkernel.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

struct TileTask;  // block.h

struct RhsModeRow {
  RhsMode mode;
  const char* name;
  bool reads_rhs = false;  // True: the first register tile reads the stored rhs, not a packed panel.
  bool stores = false;     // True: the first register tile stores a packed panel for the others.
  bool rereads = false;    // True: every register tile reads the stored rhs.
  // True: tiles use the mode whenever possible, because it reads rhs once, in the order of memory.
  bool needs_no_costs = false;
  RhsMode rest;  // Mode for the last columns of a block if they are too few for a kernel of this mode.
  // Returns true if tiles of this many rows can use the mode.
  bool (*applies)(const TileContext& context, int64_t rows);
  // Returns the kernel for mr rows, and how many of the next `cols` columns it computes. DirectKernel::run is null if
  // no kernel is that narrow.
  DirectKernel (*kernel)(const TileContext& context, int64_t mr, int64_t cols);
};

// Number of modes without needs_no_costs.
inline constexpr size_t kComparedModes = 3;

// Returns all modes, indexed by RhsMode.
absl::Span<const RhsModeRow> RhsModes();
inline const RhsModeRow& RowOf(RhsMode mode) { return RhsModes()[static_cast<size_t>(mode)]; }

// Returns the most rows of a register tile, for a tile of this many rows. The register tiles of a tiled GEMV
// (FormatKernels::tiled_gemv_rows) count as one.
int64_t TallestTile(const TileContext& context, RhsMode mode, int64_t rows);

// Returns true if the kernels of tiles with this many rows copy the next packed panel (CopyAhead).
bool CopiesAhead(const TileContext& context, RhsMode mode, int64_t rows);
// Returns true if the kernels of these tiles pack the next panel, either as CopyAhead or as PackAhead.
bool PacksAhead(const TileContext& context, RhsMode mode, int64_t rows);

// A panel of rhs: the columns of a block that one kernel call multiplies.
struct Panel {
  int64_t cols;   // Columns that exist.
  int64_t width;  // Columns that the kernel computes: `cols` and padding. In a packed panel, also the row stride.
  const RhsModeRow* mode;
};

Panel NextPanel(const TileContext& context, const TileTask& task, int64_t cols_left);

}  // namespace raggemm
