// How kernels get rhs: one dimension of a strategy. rhs_layout.h has the other one.
#ifndef RAGGEMM_KERNELS_PLAN_RHS_MODE_H_
#define RAGGEMM_KERNELS_PLAN_RHS_MODE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/isa/microkernel.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

struct TileTask;  // block.h

struct RhsModeRow {
  RhsMode mode;
  const char* name;
  bool reads_rhs;  // True: the first register tile reads rhs itself. False: rhs is packed before.
  bool stores;     // True: the first register tile stores a packed strip for the others.
  bool rereads;    // True: every register tile reads rhs itself.
  bool streams;    // True: rhs is read once in the order of memory, and the mode is used for all tiles that it takes.
  RhsMode rest;    // Mode of the last columns, if they are too few for a kernel.
  // Returns true if tiles of so many rows can use the mode.
  bool (*applies)(const TileContext& context, int64_t rows);
  // Returns the kernel of mr rows for the next columns, and how many of the `cols` it takes. Null if they are too few.
  DirectKernel (*kernel)(const TileContext& context, int64_t mr, int64_t cols);
};

absl::Span<const RhsModeRow> RhsModes();
inline const RhsModeRow& RowOf(RhsMode mode) { return RhsModes()[static_cast<size_t>(mode)]; }

// The columns [col, col + cols) of a block that one kernel computes.
struct Panel {
  int64_t cols;            // Columns that exist.
  int64_t width;           // Columns that the kernel computes. Also the row stride of a packed strip.
  const RhsModeRow* mode;  // Mode of this strip.
};

// Returns the next strip of a block with `cols_left` columns from there on.
Panel NextPanel(const TileContext& context, const TileTask& task, int64_t cols_left);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_RHS_MODE_H_
