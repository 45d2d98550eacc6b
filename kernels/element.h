// What a DType is; and elements of an Array, one at a time, as float64. These are for the reference and for tests:
// simple, exact and slow.
#ifndef RAGGEMM_KERNELS_ELEMENT_H_
#define RAGGEMM_KERNELS_ELEMENT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "raggemm/problem.h"

namespace raggemm {

int64_t SizeOf(DType dtype);  // bytes
absl::string_view NameOf(DType dtype);

// A binary floating point format: bits of precision with the hidden one, exponent of the smallest normal number.
struct FloatFormat {
  int digits, min_exponent;
  double Epsilon() const;
  double SmallestSubnormal() const;
};
FloatFormat FormatOf(DType dtype);  // f16, bf16, f32, f64

int64_t ElementCount(const Array& array);

// Any dtype; integers up to 2^53 exactly.
double ToDouble(const Array& array, int64_t index);

// The nearest value of f16, bf16, f32 or f64, ties to even: one rounding.
double RoundTo(DType dtype, double value);
void StoreRounded(const Array& array, int64_t index, double value);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ELEMENT_H_
