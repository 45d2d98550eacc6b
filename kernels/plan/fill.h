#pragma once

#include <cstdint>

#include "kernels/check/checked.h"

namespace raggemm {

// Returns the number of slices of out to fill, about 1 MiB each. 0 if all elements belong to processed groups.
int64_t CountFillTiles(const Checked& checked);
// Fills the elements of a slice that are in no processed group: with c if given, else with zeros.
void FillTile(const Checked& checked, int64_t slice);

}  // namespace raggemm
