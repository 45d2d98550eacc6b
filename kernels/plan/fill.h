#pragma once

#include <cstdint>

#include "kernels/check/checked.h"

namespace raggemm {

// Returns the number of slices of out to fill, about 1 MiB each. 0 if all elements belong to processed groups.
int64_t CountFillTiles(const Checked& checked);
// Fills the elements of a slice that belong to no processed group with zeros, or from c if given.
void FillTile(const Checked& checked, int64_t slice);

}  // namespace raggemm
