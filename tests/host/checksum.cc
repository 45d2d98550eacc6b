#include "tests/host/checksum.h"

#include <cmath>

#include "raggemm/element.h"
#include "tests/oracle/values.h"

namespace raggemm::host {

uint64_t Checksum(const Array& array) {
  const uint64_t nan = FormatOf(array.dtype).NaN();
  uint64_t sum = 0;
  for (int64_t i = 0; i < ElementCount(array); ++i) {
    const uint64_t bits = std::isnan(ToDouble(array, i)) ? nan : BitsOf(array, i);
    sum += Scramble(Scramble(bits) + static_cast<uint64_t>(i + 1) * kGolden);
  }
  return sum;
}

}  // namespace raggemm::host
