// Chooses a strategy for each tile height: a mode (rhs_mode.h) and a block shape (RowsShape). If a mode that needs no
// costs applies, it is chosen. Otherwise a cost model chooses the cheapest strategy.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/plan/tile_plan.h"

namespace raggemm {

TilePlan PlanTile(const TileContext& context, int64_t rows, int64_t cols);

// Returns the compared strategies as text, one per line. Costs are in cycles for one step of k of a panel. A `*` marks
// the chosen strategy. Without a comparison, returns only the chosen strategy, without costs. `k` is the length of the
// contraction.
std::string CostText(const TileContext& context, const Window& window, int64_t k);

}  // namespace raggemm
