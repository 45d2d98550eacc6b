#include "tests/oracle/values.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"
#include "raggemm/element.h"

namespace raggemm::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(RoundTo, TiesGoToEven) {
  EXPECT_EQ(RoundTo(DType::kF16, 2049), 2048);
  EXPECT_EQ(RoundTo(DType::kF16, 2051), 2052);
  EXPECT_EQ(RoundTo(DType::kBF16, 257), 256);
  EXPECT_EQ(RoundTo(DType::kBF16, 259), 260);
  // Rounding to f32 first would give 257, a tie that then rounds to 256.
  EXPECT_EQ(RoundTo(DType::kBF16, 257.0000000001), 258);
  EXPECT_EQ(RoundTo(DType::kF32, 16777217.0), 16777216.0);
}

TEST(RoundTo, LimitsOfTheFormat) {
  EXPECT_EQ(RoundTo(DType::kF16, 65519.9), 65504);
  EXPECT_EQ(RoundTo(DType::kF16, 65520), kInf);
  EXPECT_EQ(RoundTo(DType::kF16, -65520), -kInf);
  EXPECT_EQ(RoundTo(DType::kBF16, 0x1.ffp127), kInf);
  EXPECT_EQ(RoundTo(DType::kF32, 0x1.ffffffp127), kInf);
  EXPECT_EQ(RoundTo(DType::kF16, 0x1p-25), 0);
  EXPECT_EQ(RoundTo(DType::kF16, 0x1.8p-24), 0x1p-23);
  EXPECT_TRUE(std::signbit(RoundTo(DType::kF16, -0x1p-30)));
  EXPECT_EQ(RoundTo(DType::kF64, 0x1p-1074), 0x1p-1074);
}

template <typename T>
void ExpectLike(DType dtype, DType expands_to) {
  using Limits = std::numeric_limits<T>;
  const Format& format = FormatOf(dtype);
  SCOPED_TRACE(format.name);
  const int bytes = sizeof(T);
  EXPECT_EQ(format.bits, 8 * bytes);
  EXPECT_EQ(SizeOf(dtype), bytes);
  EXPECT_EQ(BytesOf(dtype, 3), 3 * bytes);
  EXPECT_EQ(format.digits, Limits::digits);
  EXPECT_EQ(format.role == Role::kMatrix, !Limits::is_integer);
  EXPECT_EQ(format.nonfinite == NonFinite::kIeee, Limits::has_infinity);
  EXPECT_EQ(format.expands_to, expands_to);
  EXPECT_EQ(format.max_exponent, (Limits::is_integer ? Limits::digits : Limits::max_exponent) - 1);
  if (Limits::is_integer) return;
  EXPECT_EQ(format.min_exponent, Limits::min_exponent - 1);
  EXPECT_EQ(format.Epsilon(), Limits::epsilon());
  EXPECT_EQ(format.SmallestSubnormal(), Limits::denorm_min());
}

TEST(FormatOf, AgreesWithTheLanguage) {
  ExpectLike<float>(DType::kF32, DType::kF32);
  ExpectLike<double>(DType::kF64, DType::kF64);
  ExpectLike<int32_t>(DType::kS32, DType::kS32);
  ExpectLike<int64_t>(DType::kS64, DType::kS64);
  ExpectLike<uint32_t>(DType::kU32, DType::kU32);
  ExpectLike<int8_t>(DType::kS8, DType::kS32);
  ExpectLike<uint8_t>(DType::kU8, DType::kS32);
  ExpectLike<int16_t>(DType::kS16, DType::kS32);
  EXPECT_EQ(FormatOf(DType::kF16).Epsilon(), 0x1p-10);
  EXPECT_EQ(FormatOf(DType::kBF16).SmallestSubnormal(), 0x1p-133);
  EXPECT_EQ(FormatOf(DType::kF16).NaN(), 0x7e00u);
  EXPECT_EQ(FormatOf(DType::kBF16).NaN(), 0x7fc0u);
  EXPECT_EQ(FormatOf(DType::kF32).NaN(), 0x7fc00000u);
  EXPECT_EQ(FormatOf(DType::kF64).NaN(), 0x7ff8000000000000u);
  EXPECT_EQ(FormatOf(DType::kF16).expands_to, DType::kF32);
  EXPECT_EQ(FormatOf(DType::kBF16).expands_to, DType::kF32);
}

}  // namespace
}  // namespace raggemm::test
