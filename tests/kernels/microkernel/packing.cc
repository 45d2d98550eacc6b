#include <cstdint>

#include "gtest/gtest.h"
#include "kernels/isa/microkernel.h"
#include "kernels/target/isa.h"
#include "tests/kernels/microkernel/values.h"
#include "tests/support/isa_fixture.h"

namespace raggemm::test {
namespace {

class Packing : public IsaTest {
 protected:
  absl::Span<const KernelRow> rows() const { return RowOf(GetParam()).kernels; }

  void ExpectPacked(const KernelRow& row, DType dtype, int64_t k, int64_t width, bool transposed, bool is_lhs) {
    const FormatKernels& kernels = KernelsOf(row, dtype);
    const PackedLayout& layout = is_lhs ? row.lhs : row.rhs;
    const Packers& packers = is_lhs ? kernels.lhs : kernels.rhs;
    const int64_t k_padded = PaddedK(row, k);
    const int64_t dst_stride = RoundUp(width, row.vector), src_stride = (transposed ? k : width) + 2;
    const int64_t elements = transposed ? (width - 1) * src_stride + k : (k - 1) * src_stride + width;
    const DType packed = PanelType(layout, dtype);
    const bool same_format = random_.Coin(), flips = is_lhs && Flips(row, same_format);
    const int64_t slack = row.vector * SizeOf(ArithmeticOf(row).sum) / SizeOf(layout.element);
    const Values src(dtype, elements, random_);
    const Values dst(packed, PanelElements(layout, k_padded, dst_stride) + slack, random_);
    Prefetch prefetch{reinterpret_cast<const char*>(uintptr_t{1} << 40), 5, 1, 2, 640};
    const PackArgs args{src.data(), src_stride, k,         k_padded, width,
                        dst.data(), dst_stride, &prefetch, is_lhs,   same_format};
    (transposed ? packers.transposed : packers.rows)(args);
    for (int64_t kk = 0; kk < k_padded; ++kk) {
      for (int64_t j = 0; j < width; ++j) {
        const double want = kk >= k ? 0 : src[transposed ? j * src_stride + kk : kk * src_stride + j];
        ASSERT_EQ(dst[AtStep(layout, kk, j, dst_stride)], flips ? Flipped(packed, want) : want)
            << "dtype " << NameOf(dtype) << " width " << width << " k " << k << " transposed " << transposed;
      }
    }
    ASSERT_TRUE(dst.SurroundingsIntact());
  }

  void ExpectPackedAhead(const KernelRow& row, int64_t k, int64_t width, bool transposed) {
    const DType product = ArithmeticOf(row).product;
    const int64_t k_padded = PaddedK(row, k), src_stride = (transposed ? k : width) + 2, calls = 1 + random_.Below(3);
    const Values src(product, transposed ? (width - 1) * src_stride + k : (k - 1) * src_stride + width, random_);
    const Values dst = Panel(row.rhs, product, k, k_padded, row.cols, random_);
    const Values a = Panel(row.lhs, product, k, k_padded, row.rows, random_),
                 b = Panel(row.rhs, product, k, k_padded, row.cols, random_);
    const Values sums(ArithmeticOf(row).sum, row.rows * row.cols, random_);
    Prefetch nothing{};
    const Packers& packers = KernelsOf(row, product).rhs;
    PackAhead ahead{.pack = transposed ? packers.transposed : packers.rows,
                    .left = {src.data(), src_stride, k, k_padded, width, dst.data(), row.cols, &nothing},
                    .slice = row.ahead_slice,
                    .src_step = row.ahead_slice * (transposed ? 1 : src_stride) * SizeOf(product),
                    .dst_step = PackedBytes(row.rhs, row.ahead_slice, row.cols),
                    .count = 0};
    const int64_t slices = RoundUp(k_padded, row.ahead_slice) / row.ahead_slice;
    const MatrixUnitScope unit(row);
    for (int64_t call = 0; call < calls; ++call) {
      ahead.count = slices * (call + 1) / calls - slices * call / calls;
      KernelsOf(row, product)
          .packed[row.rows]({.k = k,
                             .a = a.data(),
                             .b = {b.data(), row.cols},
                             .columns = row.cols,
                             .panel = nullptr,
                             .chain = sums.data(),
                             .total = nullptr,
                             .out = {sums.data(), row.cols},
                             .begin = Begin::kZero,
                             .end = End::kStore,
                             .same_format = true,
                             .side = {&nothing, &ahead}});
    }
    EXPECT_EQ(ahead.left.k_padded, 0);
    for (int64_t kk = 0; kk < k_padded; ++kk) {
      for (int64_t j = 0; j < width; ++j) {
        const double want = kk >= k ? 0 : src[transposed ? j * src_stride + kk : kk * src_stride + j];
        ASSERT_EQ(dst[AtStep(row.rhs, kk, j, row.cols)], want) << "k " << k << " transposed " << transposed;
      }
    }
    const double want = SumOf(ArithmeticOf(row), k, 0, [&](int64_t kk, double before) {
      return Fma(ArithmeticOf(row).sum, a[AtStep(row.lhs, kk, 0, row.rows)], b[AtStep(row.rhs, kk, 0, row.cols)],
                 before);
    });
    EXPECT_EQ(sums[0], want);
    EXPECT_TRUE(dst.SurroundingsIntact());
  }

  Random random_{TestSeed()};
};
RAGGEMM_FOR_EACH_ISA(Packing);

TEST_P(Packing, Packs) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : TypesOf(row)) {
      for (int64_t width = 1; width <= 2 * row.vector + 1; ++width) {
        for (int64_t k :
             {int64_t{1}, int64_t{3}, row.vector, row.vector + 1, 2 * row.vector + 3, int64_t{64}, int64_t{130}}) {
          for (int which = 0; which < 4; ++which) {
            if (!Sampled(3)) continue;
            ExpectPacked(row, dtype, k, width, /*transposed=*/which % 2 != 0, /*is_lhs=*/which / 2 != 0);
            ASSERT_FALSE(HasFatalFailure());
          }
        }
      }
    }
  }
}

// These kernels multiply, and meanwhile pack slices of the next panel of rhs. One to three calls share the slices, so a
// call may have none to pack.
TEST_P(Packing, PackAhead) {
  for (const KernelRow& row : rows()) {
    if (row.ahead_slice == 0) continue;
    for (bool transposed : {false, true}) {
      for (int64_t k : {1, 31, 70, 256}) {
        ExpectPackedAhead(row, k, row.cols - random_.Below(3), transposed);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
