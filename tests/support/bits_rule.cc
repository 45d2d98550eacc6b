#include "tests/support/bits_rule.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/oracle/values.h"

namespace raggemm::test {
namespace {

bool SameBits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

std::string Mismatch(int64_t index, double got, double want, int64_t wrong, int64_t elements) {
  char text[200];
  std::snprintf(text, sizeof(text), "out[%lld] is %.17g (%a), expected %.17g (%a); %lld of %lld elements are wrong",
                static_cast<long long>(index), got, got, want, want, static_cast<long long>(wrong),
                static_cast<long long>(elements));
  return text;
}

template <typename Right>
testing::AssertionResult Compare(const Array& out, const std::vector<double>& want, Right right) {
  int64_t wrong = 0, first = 0;
  for (int64_t i = ElementCount(out) - 1; i >= 0; --i) {
    if (right(ToDouble(out, i), i)) continue;
    ++wrong;
    first = i;
  }
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << Mismatch(first, ToDouble(out, first), want[first], wrong, ElementCount(out));
}

}  // namespace

testing::AssertionResult HasBits(const Array& out, const std::vector<double>& expected) {
  return Compare(out, expected, [&](double got, int64_t i) { return SameBits(got, expected[i]); });
}

testing::AssertionResult IsWithinBound(const Array& out, const Reference& reference) {
  return Compare(out, reference.want, [&](double got, int64_t i) {
    return ErrorInUnitsOfBound(got, reference.want[i], reference.bound[i], out.dtype) <= 1;
  });
}

}  // namespace raggemm::test
