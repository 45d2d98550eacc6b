// Reads and writes elements of an Array of any type as float64.
#pragma once

#include <cstdint>

#include "raggemm/element.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns an element as float64. Integers are exact up to 2^53.
double ToDouble(const Array& array, int64_t index);

// Rounds a value once to a float format, ties to even. A value out of range becomes an infinity if the format has
// infinities, else a NaN if it has one, else the largest number of its sign.
double RoundTo(DType dtype, double value);
// Rounds a value by RoundTo and stores it. For integer formats, stores the integer part modulo 2^bits.
void StoreRounded(const Array& array, int64_t index, double value);

}  // namespace raggemm
