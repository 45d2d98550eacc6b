// Chooses a strategy for each tile height: a mode that needs no costs if one applies, else the cheapest strategy by a
// cost model. A strategy is a mode (rhs_mode.h) and a block shape (RowsShape), for a layout of rhs (rhs_layout.h).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/plan/tile_plan.h"

namespace raggemm {

TilePlan PlanTile(const TileContext& context, int64_t rows, int64_t cols);

// Returns the compared strategies as text: one line for each, with its costs in cycles for one step of k of a panel.
// The chosen one has a `*`. If none were compared, returns only the chosen one, without costs. `k` is the length of the
// contraction.
std::string CostText(const TileContext& context, const Window& window, int64_t k);

}  // namespace raggemm
