#include "tests/oracle/flushing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

namespace raggemm {
namespace {

// Rounds the exact sum x + error to f32 once, to nearest even, as if the exponent had no lower limit. Flushes results
// below the smallest normal number to zero.
float RoundAndFlush(double x, double error) {
  // Rounds x + error to odd in float64. The rounding to f32 below is then equal to a single rounding.
  if (error != 0 && (std::bit_cast<uint64_t>(x) & 1) == 0) {
    x = std::nextafter(x, error > 0 ? HUGE_VAL : -HUGE_VAL);
  }
  if (!std::isfinite(x)) return static_cast<float>(x);
  const double scale = std::abs(x) < 1 ? 0x1p100 : 1;
  const double rounded = static_cast<double>(static_cast<float>(x * scale)) / scale;
  return std::abs(rounded) < 0x1p-126 ? std::copysign(0.0F, static_cast<float>(std::copysign(1.0, x)))
                                      : static_cast<float>(rounded);
}

}  // namespace

float FlushingAdd(double a, double b) {
  const double sum = a + b, part = sum - a;
  return RoundAndFlush(sum, std::isfinite(sum) ? (a - (sum - part)) + (b - part) : 0);
}

float OddSum(float a, float b) {
  if (std::abs(a) < std::abs(b)) std::swap(a, b);
  if (!std::isfinite(a) || !std::isfinite(b) || b == 0) return a + b;
  constexpr int kRoom = 32;   // Binary digits that the sum keeps below the larger operand.
  constexpr int kMost = 255;  // Exponent field of infinities and NaN.
  const auto field = [](float x) { return static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & kMost); };
  const auto digits = [](float x) { return uint64_t{(std::bit_cast<uint32_t>(x) & 0x7fffff) | 0x800000} << kRoom; };
  const int distance = std::min(field(a) - field(b), 63);
  uint64_t small = digits(b) >> distance;
  small |= small << distance != digits(b) ? 1 : 0;
  const uint64_t sum = std::signbit(a) == std::signbit(b) ? digits(a) + small : digits(a) - small;
  if (sum == 0) return 0;
  const int lost = std::bit_width(sum) - 24, exponent = field(a) + lost - kRoom;
  if (exponent <= 0) return std::copysign(0.0F, a);
  if (exponent >= kMost) return std::copysign(HUGE_VALF, a);
  uint64_t kept = lost > 0 ? sum >> lost : sum << -lost;
  kept |= lost > 0 && kept << lost != sum ? 1 : 0;
  const auto bits = static_cast<uint32_t>(exponent) << 23 | static_cast<uint32_t>(kept & 0x7fffff);
  return std::copysign(std::bit_cast<float>(bits), a);
}

}  // namespace raggemm
