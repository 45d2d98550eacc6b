#include "kernels/plan/quant_params.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/base/casts.h"
#include "kernels/plan/select_kernels.h"
#include "kernels/target/isa.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Checks that kQuantized (microkernel.h) and kFormats describe the same formats.
static_assert([] {
  for (const QuantizedFormat& row : kQuantized) {
    const Format& format = FormatOf(row.dtype);
    const bool integer = format.IsInteger(), is_signed = !integer || format.digits < format.bits;
    const bool same = format.role == Role::kQuantized && row.bits == format.bits && row.is_integer == integer &&
                      row.is_signed == is_signed && row.digits == format.digits &&
                      row.min_exponent == format.min_exponent &&
                      (row.first_nonfinite == ~0U) == (format.nonfinite == NonFinite::kNone);
    if (!same) return false;
  }
  int quantized = 0;
  for (const Format& format : kFormats) quantized += format.role == Role::kQuantized;
  return quantized == kQuantizedFormats;
}());

struct Series {
  int64_t first, step, count;
};

template <class E, class ToValue>
void ReadEach(const char* data, const Series& at, float* values, ToValue value) {
  const auto [first, step, n] = at;
  const E* from = reinterpret_cast<const E*>(data) + first;
  if (step == 1) {
    for (int64_t i = 0; i < n; ++i) values[i] = value(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] = value(from[i * step]);
  }
}

// Returns the value of a finite float of any format.
constexpr float OfBits(uint32_t bits, int fraction_bits, int exponent_bits) {
  const uint32_t one = 1U << fraction_bits, fraction = bits & (one - 1);
  const int field = static_cast<int>(bits >> fraction_bits & ((1U << exponent_bits) - 1));
  float value = static_cast<float>(field == 0 ? fraction : one + fraction);
  const int exponent = std::max(field, 1) - (1 << (exponent_bits - 1)) + 1 - fraction_bits;
  for (int e = exponent; e < 0; ++e) value /= 2;
  for (int e = exponent; e > 0; --e) value *= 2;
  return bits >> (fraction_bits + exponent_bits) != 0 ? -value : value;
}

constexpr std::array<float, 256> kOfE4M3 = [] {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 256; ++code) {
    table[code] = (code & 0x7f) == 0x7f ? std::numeric_limits<float>::quiet_NaN() : OfBits(code, 3, 4);
  }
  return table;
}();

float OfF16(uint32_t bits) {
  if ((bits & 0x7c00) != 0x7c00) return OfBits(bits, 10, 5);
  const float value = (bits & 0x3ff) != 0 ? std::numeric_limits<float>::quiet_NaN() : HUGE_VALF;
  return bits >= 0x8000 ? -value : value;
}

void ReadValues(const char* data, DType dtype, const Series& at, float* values) {
  switch (dtype) {
    case DType::kF32:
      return ReadEach<float>(data, at, values, [](float x) { return x; });
    case DType::kBF16:
      return ReadEach<uint16_t>(data, at, values, [](uint32_t x) { return absl::bit_cast<float>(x << 16); });
    case DType::kF8E4M3FN:
      return ReadEach<uint8_t>(data, at, values, [](uint8_t code) { return kOfE4M3[code]; });
    case DType::kF8E8M0FNU:
      return ReadEach<uint8_t>(data, at, values, [](uint32_t code) {
        return absl::bit_cast<float>(code == 0 ? 1U << 22 : code == 255 ? 0x7fc00000U : code << 23);
      });
    case DType::kF16:
      return ReadEach<uint16_t>(data, at, values, OfF16);
    default:  // Integers, which are zero points.
      for (int64_t i = 0; i < at.count; ++i) {
        values[i] = static_cast<float>(ToInteger({const_cast<char*>(data), dtype, {}}, at.first + i * at.step));
      }
  }
}

// Reads successive values of an array.
class ValueReader {
 public:
  ValueReader(const KernelChoice& kernels, const GroupValues& from)
      : from_(from), widen_(KernelsOf(*kernels.floats, from.dtype).widen) {
    if (widen_ == nullptr) dequantize_ = DequantizerFor(kernels.isa, from.dtype, DType::kF32);
  }

  // Reads n values. Writes up to a vector more.
  void Read(int64_t first, int64_t n, float* values) const {
    if (widen_ != nullptr) return widen_({n, from_.data + first * SizeOf(from_.dtype), values});
    if (dequantize_ == nullptr || first % ElementsPerByte(from_.dtype) != 0) {
      return ReadValues(from_.data, from_.dtype, {first, 1, n}, values);
    }
    dequantize_({.src = from_.data,
                 .first = first,
                 .src_step = 0,
                 .lines = 1,
                 .count = n,
                 .dst = values,
                 .dst_step = 0,
                 .zeros = nullptr,
                 .scales = nullptr});
  }

 private:
  const GroupValues& from_;
  Widen* const widen_;
  Dequantize* dequantize_ = nullptr;
};

}  // namespace

StoredPosition PositionOf(const Operand& operand, const Matrix& matrix, int64_t row, int64_t col) {
  const int64_t first = (matrix.data - operand.data) * 8 / FormatOf(operand.dtype).bits;
  const int64_t cols = std::max<int64_t>(operand.cols, 1);
  if (operand.block_cols != 0) return {first / RoundUp(cols, operand.block_cols) + row, col, false};
  if (operand.is_trans) std::swap(row, col);
  return {first / cols + row, first % cols + col, false};
}

bool ScalesElements(const Operand& x) {
  return (x.zero.is_given() && x.zero.applies_to_elements) || (x.scale.is_given() && x.scale.applies_to_elements);
}

bool HasBlockScales(const Operand& x, bool is_lhs) {
  if (x.zero.is_given() || x.scale.values.dtype != DType::kF8E8M0FNU || !x.scale.per_block) return false;
  const bool k_is_rows = x.is_trans == is_lhs;
  const int64_t along_k = k_is_rows ? x.scale.row_block : x.scale.col_block;
  const int64_t across = k_is_rows ? x.scale.col_block : x.scale.row_block;
  return x.dtype == DType::kF4E2M1FN && along_k % kScaleSteps == 0 && across == 1;
}

BlockScales BlockScalesOf(const Operand& x, bool is_lhs, const Matrix& matrix, int64_t row, int64_t col) {
  if (!x.scale.is_given() || !x.scale.applies_to_elements) return {};
  const bool k_is_rows = x.is_trans == is_lhs;
  const QuantParams& scale = x.scale;
  const StoredPosition at = PositionOf(x, matrix, row, col);
  const int64_t first = scale.IndexOf(at.row / scale.row_block % scale.rows, at.col / scale.col_block);
  return {.first = reinterpret_cast<const uint8_t*>(scale.values.data) + first,
          .k_step = k_is_rows ? scale.cols : 1,
          .column_step = k_is_rows ? 1 : scale.cols,
          .steps = k_is_rows ? scale.row_block : scale.col_block,
          .offset = k_is_rows ? at.row % scale.row_block : at.col % scale.col_block};
}

void PrefetchQuantParams(const QuantParams& params, const StoredPosition& at, int64_t n) {
  if (!params.per_block || at.down) return;
  const int64_t row = at.row / params.row_block % params.rows, col = at.col / params.col_block;
  const char* const first = params.values.data + params.IndexOf(row, col) * SizeOf(params.values.dtype);
  const int64_t bytes = (n - 1) / params.col_block * SizeOf(params.values.dtype) + 1;
  for (int64_t byte = 0; byte < bytes; byte += kLineBytes) __builtin_prefetch(first + byte, 0, 2);
}

void ReadQuantParams(const TileContext& context, const QuantParams& params, const GroupGemm& gemm,
                     const StoredPosition& at, int64_t n, float* values) {
  const char* const data = params.values.data;
  const DType dtype = params.values.dtype;
  const auto fill = [&](int64_t index, int64_t count) {
    float value;
    ReadValues(data, dtype, {index, 1, 1}, &value);
    std::fill_n(values, count, value);
    values += count;
  };
  if (!params.per_block) return fill(RowOf(context.call, params.values.per, gemm), n);
  StoredPosition next = at;
  int64_t& moving = at.down ? next.row : next.col;
  const int64_t block = at.down ? params.row_block : params.col_block;
  const int64_t row = at.row / params.row_block % params.rows, col = at.col / params.col_block;
  if (params.matrix_rows != 0) {
    const ValueReader reader(context.kernels, params.values);
    for (int64_t i = 0, first = params.IndexOf(row, col), count; i < n; i += count) {
      count = std::min(n - i, kWordColumns - (col + i) % kWordColumns);
      reader.Read(first, count, values + i);
      first += count + (params.matrix_rows - 1) * kWordColumns;
    }
    return;
  }
  if (block == 1) {
    const int64_t first = row * params.cols + col;
    // One call reads all values: the n elements are in one matrix, so `row` does not wrap around.
    if (!at.down) return ValueReader(context.kernels, params.values).Read(first, n, values);
    return ReadValues(data, dtype, {first, params.cols, n}, values);
  }
  for (int64_t left = n; left > 0;) {
    const int64_t count = std::min(left, block - moving % block);
    fill(next.row / params.row_block % params.rows * params.cols + next.col / params.col_block, count);
    moving += count;
    left -= count;
  }
}

}  // namespace raggemm
