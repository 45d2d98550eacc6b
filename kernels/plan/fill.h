#pragma once

#include <cstdint>

#include "kernels/check/checked.h"

namespace raggemm {

// Returns the number of slices of out, or 0 if all elements belong to processed groups. A slice has about 1 MiB.
int64_t CountFillTiles(const Checked& checked);
// Fills the elements of a slice that belong to no processed group with zeros, or from c if given.
void FillTile(const Checked& checked, int64_t slice);

}  // namespace raggemm
