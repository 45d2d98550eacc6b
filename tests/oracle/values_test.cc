#include "tests/oracle/values.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/base/casts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"

namespace raggemm::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class HalfValues : public testing::TestWithParam<DType> {};

// Every 16-bit pattern is read, and stored again, as itself; values rise with the pattern.
TEST_P(HalfValues, RoundTrip) {
  const int64_t dims[] = {1};
  double previous = -kInf;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    uint16_t pattern = static_cast<uint16_t>(bits), copy = 0;
    const double value = ToDouble({&pattern, GetParam(), dims}, 0);
    StoreRounded({&copy, GetParam(), dims}, 0, value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToDouble({&copy, GetParam(), dims}, 0))) << bits;
      continue;
    }
    ASSERT_EQ(copy, pattern) << value;
    if (bits >= 0x8000) continue;
    EXPECT_GT(value, previous);
    previous = value;
  }
}
INSTANTIATE_TEST_SUITE_P(DType, HalfValues, testing::Values(DType::kF16, DType::kBF16));

TEST(ToDouble, KnownPatterns) {
  const int64_t dims[] = {4};
  uint16_t f16[] = {0x3c00, 0x0001, 0x7bff, 0xfc00};
  uint16_t bf16[] = {0x3f80, 0x0001, 0x7f7f, 0xff80};
  const auto read = [&](uint16_t* data, DType dtype) {
    std::vector<double> values;
    for (int i = 0; i < 4; ++i) values.push_back(ToDouble({data, dtype, dims}, i));
    return values;
  };
  EXPECT_THAT(read(f16, DType::kF16), testing::ElementsAre(1, 0x1p-24, 65504, -kInf));
  EXPECT_THAT(read(bf16, DType::kBF16), testing::ElementsAre(1, 0x1p-133, 0x1.fep127, -kInf));
}

TEST(ToDouble, Integers) {
  const int64_t dims[] = {1};
  int32_t s32 = -7;
  uint32_t u32 = 4000000000u;
  int64_t s64 = int64_t{1} << 40;
  EXPECT_EQ(ToDouble({&s32, DType::kS32, dims}, 0), -7);
  EXPECT_EQ(ToDouble({&u32, DType::kU32, dims}, 0), 4e9);
  EXPECT_EQ(ToDouble({&s64, DType::kS64, dims}, 0), 0x1p40);
}

TEST(StoreRounded, IntegersWrapAround) {
  const int64_t dims[] = {1};
  int8_t s8 = 0;
  uint8_t u8 = 0;
  StoreRounded({&s8, DType::kS8, dims}, 0, 200);
  StoreRounded({&u8, DType::kU8, dims}, 0, -56);
  EXPECT_EQ(ToDouble({&s8, DType::kS8, dims}, 0), -56);
  EXPECT_EQ(ToDouble({&u8, DType::kU8, dims}, 0), 200);
}

TEST(RoundTo, TiesGoToEven) {
  EXPECT_EQ(RoundTo(DType::kF16, 2049), 2048);
  EXPECT_EQ(RoundTo(DType::kF16, 2051), 2052);
  EXPECT_EQ(RoundTo(DType::kBF16, 257), 256);
  EXPECT_EQ(RoundTo(DType::kBF16, 259), 260);
  // One rounding: by way of f32 this would become a tie, and 256.
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

// As the language reads, writes and rounds them: random bits, and each exponent with the fractions at its ends.
TEST(ToDouble, FloatsAreThoseOfTheLanguage) {
  std::mt19937_64 random(20240607);
  for (uint64_t i = 0; i < 100'000; ++i) {
    const uint64_t field = random() % 2048 << 52, sign = random() << 63;
    const uint64_t patterns[] = {random(), sign | field, sign | field | 1, sign | (field + 0x000f'ffff'ffff'ffff)};
    for (uint64_t bits : patterns) {
      const double given = absl::bit_cast<double>(bits);
      if (std::isnan(given)) continue;
      double f64 = 0;
      StoreRounded({&f64, DType::kF64, {1}}, 0, given);
      ASSERT_EQ(absl::bit_cast<uint64_t>(f64), bits);
      ASSERT_EQ(absl::bit_cast<uint64_t>(ToDouble({&f64, DType::kF64, {1}}, 0)), bits);
      float f32 = 0;
      StoreRounded({&f32, DType::kF32, {1}}, 0, given);
      const float rounded = static_cast<float>(given);
      ASSERT_EQ(absl::bit_cast<uint32_t>(f32), absl::bit_cast<uint32_t>(rounded)) << given;
      ASSERT_EQ(absl::bit_cast<uint64_t>(ToDouble({&f32, DType::kF32, {1}}, 0)),
                absl::bit_cast<uint64_t>(static_cast<double>(rounded)));
    }
  }
}

}  // namespace
}  // namespace raggemm::test
