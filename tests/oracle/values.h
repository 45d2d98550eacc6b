// Elements of an Array as float64: simple, exact and slow.
#ifndef RAGGEMM_TESTS_ORACLE_VALUES_H_
#define RAGGEMM_TESTS_ORACLE_VALUES_H_

#include <cstdint>

#include "raggemm/element.h"
#include "raggemm/problem.h"

namespace raggemm {

// Reads an element of any dtype; integers up to 2^53 exactly.
double ToDouble(const Array& array, int64_t index);

// The nearest value of a format of floats, ties to even: one rounding. What is beyond its range is infinite, else NaN,
// else its largest number, whichever it has.
double RoundTo(DType dtype, double value);
// Stores value, rounded to the array's format. For a format of integers it must be one, and is stored modulo 2^bits.
void StoreRounded(const Array& array, int64_t index, double value);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_VALUES_H_
