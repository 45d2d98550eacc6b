// The modes of rhs. A mode is how kernels get rhs: dot, GEMV, direct, direct and store, packed. A strategy is a mode and
// a block shape, chosen for the layout of rhs (rhs_layout.h).
#ifndef RAGGEMM_KERNELS_PLAN_RHS_MODE_H_
#define RAGGEMM_KERNELS_PLAN_RHS_MODE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/isa/microkernel.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

struct TileTask;  // block.h

// A row of the table of modes.
struct RhsModeRow {
  RhsMode mode;
  const char* name;
  bool reads_rhs = false;  // True: the first register tile reads rhs itself. False: rhs is packed before.
  bool stores = false;     // True: the first register tile stores a packed panel for the others.
  bool rereads = false;    // True: every register tile reads rhs itself.
  // True: tiles use the mode whenever it applies, without comparing costs. It reads rhs once, in the order of memory.
  bool needs_no_costs = false;
  RhsMode rest;  // Mode of the last columns if they are too few for the kernel.
  // Returns true if tiles of this many rows can use the mode.
  bool (*applies)(const TileContext& context, int64_t rows);
  // Returns the kernel of mr rows for the next columns, and how many it takes. Null if `cols` are too few.
  DirectKernel (*kernel)(const TileContext& context, int64_t mr, int64_t cols);
};

// Number of modes whose costs are compared: those without needs_no_costs.
inline constexpr size_t kComparedModes = 3;

// Returns the table, in the order of RhsMode.
absl::Span<const RhsModeRow> RhsModes();
inline const RhsModeRow& RowOf(RhsMode mode) { return RhsModes()[static_cast<size_t>(mode)]; }

// A panel of rhs: the columns of a block that one kernel computes.
struct Panel {
  int64_t cols;   // Columns that exist.
  int64_t width;  // Columns that the kernel computes: the row stride of a packed panel.
  const RhsModeRow* mode;
};

// Returns the next panel of a block with `cols_left` more columns.
Panel NextPanel(const TileContext& context, const TileTask& task, int64_t cols_left);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_RHS_MODE_H_
