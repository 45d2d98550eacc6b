// Tests the kernels of every ISA of the host against their contract in kernels/isa/microkernel.h. Reads after the end
// of an operand hit an unmapped page and crash.
#include "kernels/isa/microkernel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "tests/kernels/microkernel/values.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

class Microkernels : public IsaTest {
 protected:
  // A kernel, and the register tile of mr x nr that it computes. If `packed`, the kernel reads a packed panel,
  // otherwise the stored rhs: columns if `dot`, else rows. If `stores_panel`, it packs these rows, too. If `streams`,
  // it is a streaming GEMV.
  struct Tile {
    const KernelRow& row;
    Microkernel* run;
    int64_t mr, nr;
    DType b_type;
    bool packed = false, stores_panel = false, streams = false, dot = false;

    int64_t height() const { return RoundUp(mr, row.row_step); }
    int64_t b_stride() const { return packed ? nr : dot ? 3 * kKc + 3 : nr + 3; }
    int64_t b_elements(int64_t k) const { return AtOfB(k - 1, nr - 1) + 1; }
    int64_t AtOfB(int64_t k, int64_t j) const {
      return packed ? AtStep(row.rhs, k, j, nr) : dot ? j * b_stride() + k : k * b_stride() + j;
    }
    // Returns the most steps of k in the first chain.
    int64_t MostSteps() const { return dot ? kKc : 4 * kKc; }
    bool Prefetches(int64_t k) const {
      return !dot && (k >= std::max<int64_t>(4, row.rhs.k_group) || streams || row.ahead_slice != 0);
    }
  };

  struct ChainPart {
    int64_t k;
    Begin begin;
    End end;
  };

  static std::string Named(const Tile& tile, const ChainPart& part) {
    return absl::StrCat(ArithmeticOf(tile.row).name, " ", tile.mr, "x", tile.nr, " k ", part.k, " begin ",
                        static_cast<int>(part.begin), " end ", static_cast<int>(part.end), " b ", NameOf(tile.b_type));
  }

  static std::vector<double> PanelAfter(const Tile& tile, int64_t steps, const Values& b, std::vector<double> panel) {
    for (int64_t k = 0; tile.stores_panel && k < steps; ++k) {
      for (int64_t j = 0; j < tile.nr; ++j) panel[AtStep(tile.row.rhs, k, j, tile.nr)] = b[tile.AtOfB(k, j)];
    }
    return panel;
  }

  struct Operands {
    const Values &a, &b;
    DType a_type;
    bool flips;  // True if kernels flip the top bits of lhs (kFlips).
  };

  // Computes the values that a kernel must leave in `chain` and `result`. `chain` has the values before the call.
  static void ComputeContract(const Tile& tile, const ChainPart& part, const Operands& operands,
                              const std::vector<double>& total, std::vector<double>& chain,
                              std::vector<double>& result) {
    const Arithmetic& rule = ArithmeticOf(tile.row);
    const DType sums = rule.sum;
    for (int64_t i = 0; i < tile.mr; ++i) {
      for (int64_t j = 0; j < tile.nr; ++j) {
        const int64_t at = i * tile.nr + j;
        const auto sum_of = [&](int64_t first, int64_t steps, double start) {
          return SumOf(rule, steps, start, [&](int64_t k, double before) {
            const double factor = operands.a[AtStep(tile.row.lhs, first + k, i, tile.height())];
            return Fma(sums, operands.flips ? Flipped(operands.a_type, factor) : factor,
                       operands.b[tile.AtOfB(first + k, j)], before);
          });
        };
        double sum = sum_of(0, std::min(part.k, tile.MostSteps()), part.begin == Begin::kZero ? 0 : chain[at]);
        // Dot kernels add all chains to the total.
        if (tile.dot && part.end == End::kAddTotal) sum = Add(sums, total[at], sum);
        for (int64_t k = tile.MostSteps(); k < part.k; k += kKc) {
          sum = Add(sums, sum, sum_of(k, std::min(part.k - k, kKc), 0));
        }
        if (part.end == End::kKeepChain || (rule.chain < kKc && part.k > rule.chain)) chain[at] = sum;
        if (part.end == End::kStore || tile.dot) {
          result[at] = sum;
        } else if (part.end == End::kAddTotal) {
          result[at] = Add(sums, total[at], sum);
        }
      }
    }
  }

  void ExpectContract(const Tile& tile, const ChainPart& part) {
    const Arithmetic& rule = ArithmeticOf(tile.row);
    const DType sums = rule.sum;
    const std::string what = Named(tile, part);
    const int64_t k_padded = PaddedK(tile.row, part.k), elements = tile.height() * tile.nr;
    const bool same_format = random_.Coin(), flips = Flips(tile.row, same_format);
    // The type of an lhs that differs from rhs: the other 8-bit type. Panels without bytes ignore it.
    const DType other = tile.b_type == DType::kS8 ? DType::kU8 : DType::kS8;
    const DType a_type = same_format ? tile.b_type : other;
    Values a = Panel(tile.row.lhs, a_type, part.k, k_padded, tile.height(), random_);
    Values b = tile.packed ? Panel(tile.row.rhs, tile.b_type, part.k, k_padded, tile.nr, random_)
                           : Values(tile.b_type, tile.b_elements(part.k), random_);
    RoundToProduct(rule, {&a, &b});
    const Values chain(sums, elements, random_), total(sums, elements, random_);
    const Values result(sums, elements, random_),
        panel = Panel(tile.row.rhs, tile.b_type, part.k, k_padded, tile.nr, random_);
    std::vector<double> want_chain = chain.All(), want_result = result.All();
    const std::vector<double> want_total = total.All(), want_panel = PanelAfter(tile, part.k, b, panel.All());
    ComputeContract(tile, part, {a, b, a_type, flips}, want_total, want_chain, want_result);
    // Kernels only prefetch these lines, so the address may be invalid. There may be more lines than steps of k.
    const char* line = reinterpret_cast<const char*>(uintptr_t{1} << 40);
    const int64_t lines = part.k * random_.Below(3), moved = tile.Prefetches(part.k) ? lines : 0;
    Prefetch prefetch{.line = line, .count = lines, .run_left = 1, .run = 2, .skip = 640};
    const bool aligned = reinterpret_cast<uintptr_t>(result.data()) % 64 == 0 && tile.nr % 16 == 0;
    const MatrixUnitScope unit(tile.row);
    tile.run({.k = part.k,
              .a = a.data(),
              .b = {b.data(), tile.b_stride()},
              .columns = tile.nr,
              .panel = panel.data(),
              .chain = chain.data(),
              .total = total.data(),
              .out = {result.data(), tile.nr, aligned && !tile.streams && random_.Below(2) == 0},
              .begin = part.begin,
              .end = part.end,
              .same_format = same_format,
              .side = {&prefetch}});
    ASSERT_EQ(prefetch.line - line, moved / 2 * 64 + (moved + 1) / 2 * 640) << what;
    ASSERT_EQ(prefetch.run_left, 1 + moved % 2) << what;
    if (part.end == End::kKeepChain || (!tile.row.adds_totals && !tile.streams)) {
      ASSERT_EQ(FirstOf(chain.All(), tile.mr * tile.nr), FirstOf(want_chain, tile.mr * tile.nr)) << what;
    }
    ASSERT_EQ(total.All(), want_total) << what;
    ASSERT_EQ(FirstOf(result.All(), tile.mr * tile.nr), FirstOf(want_result, tile.mr * tile.nr)) << what;
    ASSERT_EQ(panel.All(), want_panel) << what;
    ASSERT_TRUE(chain.SurroundingsIntact() && result.SurroundingsIntact() && panel.SurroundingsIntact()) << what;
  }

  // Checks a dot kernel. Its calls have all of K, so they begin and end the sums.
  void ExpectDotContract(const Tile& tile) {
    for (int64_t k : {1, 2, 15, 16, 17, 33, 67, 255, 256, 257, 300, 545, 700}) {
      for (End end : {End::kStore, End::kAddTotal}) {
        if (!Sampled(2)) continue;
        ExpectContract(tile, {.k = k, .begin = Begin::kZero, .end = end});
        if (HasFatalFailure()) return;
      }
    }
  }

  void ExpectContract(const Tile& tile) {
    for (int64_t k : {1, 2, 3, 4, 5, 8, 31, 33, 67}) {
      for (Begin begin : {Begin::kZero, Begin::kResume}) {
        for (End end : {End::kKeepChain, End::kStore, End::kAddTotal}) {
          if (!Sampled(4) || (tile.row.adds_totals && end == End::kAddTotal)) continue;
          ExpectContract(tile, {.k = k, .begin = begin, .end = end});
          if (HasFatalFailure()) return;
        }
      }
    }
    ExpectContract(tile, {.k = 256, .begin = Begin::kZero, .end = End::kStore});
  }

  absl::Span<const KernelRow> rows() const { return RowOf(GetParam()).kernels; }

  // Checks an epilogue. The bits of `operands` select alpha (1), c (2), beta (4) and bias (8).
  void ExpectEpilogue(const KernelRow& row, DType dtype, int64_t columns, int operands) {
    const DType compute = ArithmeticOf(row).sum;
    const int64_t rows = 3, stride = columns + 1, total_stride = RoundUp(columns, row.vector);
    const Values total(compute, rows * total_stride, random_), bias(compute, total_stride, random_);
    const Values alpha(compute, 1, random_), beta(compute, 1, random_);
    const int64_t elements = (rows - 1) * stride + columns;
    const Values out(dtype, elements, random_), c(dtype, elements, random_);
    std::vector<double> want = out.All();
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double r = total[i * total_stride + j];
        if (operands & 1) r = Mul(compute, alpha[0], r);
        if (operands & 2) r = Fma(compute, operands & 4 ? beta[0] : 1, c[i * stride + j], r);
        if (operands & 8) r = Add(compute, r, bias[j]);
        want[i * stride + j] = RoundTo(dtype, r);
      }
    }
    KernelsOf(row, dtype)
        .epilogue({.rows = rows,
                   .columns = columns,
                   .total = total.data(),
                   .total_stride = total_stride,
                   .out = out.data(),
                   .out_stride = stride,
                   .c = operands & 2 ? c.data() : nullptr,
                   .alpha = operands & 1 ? alpha.data() : nullptr,
                   .beta = operands & 4 ? beta.data() : nullptr,
                   .bias = operands & 8 ? bias.data() : nullptr});
    ASSERT_EQ(out.All(), want) << "dtype " << static_cast<int>(dtype) << " columns " << columns << " operands "
                               << operands;
    ASSERT_TRUE(out.SurroundingsIntact());
  }

  // Calls visit(row, dtype, mr) for every kernel row, operand type and register tile height, until a check fails.
  template <typename Visit>
  void ForEachHeight(Visit visit) {
    for (const KernelRow& row : rows()) {
      for (DType dtype : TypesOf(row)) {
        for (int64_t mr = 1; mr <= row.rows && !HasFatalFailure(); ++mr) visit(row, dtype, mr);
      }
    }
  }

  Random random_{TestSeed()};
};
RAGGEMM_FOR_EACH_ISA(Microkernels);

// Returns true if kernels of `row` read an rhs of this type in its stored layout. AMX kernels never do. Kernels with
// f64 sums do so only for f64.
bool ReadsStoredLayout(const KernelRow& row, DType dtype) {
  const bool widens_to_f64 = ArithmeticOf(row).sum == DType::kF64 && dtype != DType::kF64;
  return row.ahead_slice == 0 && !widens_to_f64;
}

// Returns true if kernels of `row` for mr rows read columns of a transposed rhs.
bool HasDotKernel(const KernelRow& row, DType dtype, int64_t mr) {
  if (row.vector < 8 || (row.arithmetic != ArithmeticId::kF32 && row.arithmetic != ArithmeticId::kPairs)) return false;
  return dtype == DType::kF32 || row.rhs.k_group == 2 || mr <= 8;
}

TEST_P(Microkernels, MultiplyEveryDType) {
  ForEachHeight([this](const KernelRow& row, DType dtype, int64_t mr) {
    const FormatKernels& kernels = KernelsOf(row, dtype);
    for (const DirectKernel& direct : kernels.direct[mr]) {
      ASSERT_EQ(direct.run != nullptr, ReadsStoredLayout(row, dtype));
      if (direct.run == nullptr) continue;
      ExpectContract({.row = row, .run = direct.run, .mr = mr, .nr = direct.nr, .b_type = dtype});
    }
    EXPECT_EQ(kernels.direct[mr][1].nr, ReadsStoredLayout(row, dtype) ? row.cols : 0);
    // Kernels that pack rhs on the fly are only needed for tall register tiles. They compute the first of several tiles
    // of a group. It has more than half the rows of the tallest tile.
    if (2 * mr > row.rows) {
      ASSERT_EQ(kernels.storing[mr] != nullptr, ReadsStoredLayout(row, dtype));
    }
    if (kernels.storing[mr] != nullptr) {
      ExpectContract(
          {.row = row, .run = kernels.storing[mr], .mr = mr, .nr = row.cols, .b_type = dtype, .stores_panel = true});
    }
    ASSERT_NE(kernels.packed[mr], nullptr);
    const DType b_type = PanelType(row.rhs, dtype);
    ExpectContract({.row = row, .run = kernels.packed[mr], .mr = mr, .nr = row.cols, .b_type = b_type, .packed = true});
  });
}

TEST_P(Microkernels, StreamEveryDType) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : TypesOf(row)) {
      const bool has_tiles = row.arithmetic == ArithmeticId::kF32 && row.vector == 8 && dtype == DType::kF32;
      const int64_t most = has_tiles ? 18 : std::min<int64_t>(kGemvRows, row.rows);
      for (int64_t mr = 1; mr <= kMaxRows; ++mr) {
        const DirectKernel& gemv = KernelsOf(row, dtype).gemv[mr];
        EXPECT_EQ(gemv.run != nullptr,
                  !row.adds_totals && row.row_step == 1 && mr <= most && ReadsStoredLayout(row, dtype));
        for (int64_t chunks = 1; gemv.run != nullptr && chunks <= 3; chunks += 2) {
          ExpectContract(
              {.row = row, .run = gemv.run, .mr = mr, .nr = chunks * gemv.nr, .b_type = dtype, .streams = true});
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

TEST_P(Microkernels, MultiplyByStoredColumns) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : TypesOf(row)) {
      for (int64_t mr = 1; mr <= row.rows; ++mr) {
        const DirectKernel& dot = KernelsOf(row, dtype).dot[mr];
        EXPECT_EQ(dot.run != nullptr, HasDotKernel(row, dtype, mr)) << mr;
        if (dot.run == nullptr) continue;
        ExpectDotContract({.row = row, .run = dot.run, .mr = mr, .nr = dot.nr, .b_type = dtype, .dot = true});
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

// A group is divided into register tiles of at most two heights. The kernels for both heights must have the same width,
// unless the kernel for the taller tiles is as wide as a packed panel.
TEST_P(Microkernels, RegisterTilesOfAPanelHaveOneWidth) {
  for (const KernelRow& row : rows()) {
    for (int64_t rows = row.rows + 1; row.ahead_slice == 0 && rows <= 4 * row.rows; ++rows) {
      const int64_t count = (rows + row.rows - 1) / row.rows;
      const auto& direct = KernelsOf(row, ArithmeticOf(row).product).direct;
      const int64_t width = direct[(rows + count - 1) / count][0].nr;
      EXPECT_TRUE(direct[rows / count][0].nr == width || row.cols == width) << rows;
    }
  }
}

TEST_P(Microkernels, Epilogues) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : ResultTypesOf(row)) {
      for (int64_t columns = 1; columns <= 2 * row.vector + 1; ++columns) {
        for (int operands = 0; operands < 16; ++operands) {
          if (!Sampled(3)) continue;
          ExpectEpilogue(row, dtype, columns, operands);
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

TEST_P(Microkernels, ExistForF64OnlyIfSumsAreF64) {
  for (const KernelRow& row : rows()) {
    const bool has_f64 = ArithmeticOf(row).sum == DType::kF64;
    const FormatKernels& kernels = KernelsOf(row, DType::kF64);
    for (const Packers& packers : {kernels.lhs, kernels.rhs}) {
      EXPECT_EQ(packers.rows != nullptr, has_f64);
      EXPECT_EQ(packers.transposed != nullptr, has_f64);
    }
    EXPECT_EQ(kernels.pack_bias != nullptr, has_f64);
    EXPECT_EQ(kernels.epilogue != nullptr, has_f64);
  }
}

}  // namespace
}  // namespace raggemm::test
