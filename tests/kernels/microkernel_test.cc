// Every function of every ISA's table against its contract in microkernel.h, with operands that end at a cliff.
#include "kernels/microkernel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/element.h"
#include "kernels/isa.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

// Random values of one dtype, as the kernel sees them and as numbers.
class Values {
 public:
  Values(DType dtype, int64_t count, Random& random) : tensor_(dtype, {count}) {
    for (int64_t i = 0; i < count; ++i) StoreRounded(tensor_.array(), i, random.Unit());
  }
  void* data() const { return tensor_.array().data; }
  void Set(int64_t i, double value) { StoreRounded(tensor_.array(), i, value); }
  double operator[](int64_t i) const { return ToDouble(tensor_.array(), i); }
  std::vector<double> All() const { return ValuesOf(tensor_.array()); }
  bool SurroundingsIntact() const { return tensor_.buffer().SurroundingsIntact(); }

 private:
  Tensor tensor_;
};

constexpr int64_t kPatterns = 1 << 16;

// The types that results and bias can have with this type of sums, and operands but for the rules of bf16.
std::vector<DType> ResultTypesOf(const KernelRow& row) {
  std::vector<DType> types = {DType::kF16, DType::kBF16, DType::kF32};
  if (ArithmeticOf(row).sum == DType::kF64) types.push_back(DType::kF64);
  return types;
}
std::vector<DType> TypesOf(const KernelRow& row) {
  if (ArithmeticOf(row).product == DType::kBF16) return {DType::kBF16};
  return ResultTypesOf(row);
}

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// One step in the compute type, whose values doubles hold exactly.
double Fma(DType compute, double a, double b, double c) {
  if (compute == DType::kF64) return std::fma(a, b, c);
  return std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
}
double Add(DType compute, double a, double b) { return RoundTo(compute, a + b); }
double Mul(DType compute, double a, double b) { return RoundTo(compute, a * b); }

// Where element j of step k stands in a panel or strip of so many rows or columns.
int64_t AtStep(const PanelLayout& layout, int64_t k, int64_t j, int64_t width) {
  return (k / layout.k_group * width + j) * layout.k_group + k % layout.k_group;
}
int64_t PanelElements(const PanelLayout& layout, int64_t k, int64_t width) {
  return PanelBytes(layout, k, width) / SizeOf(layout.element);
}

// products(k, sum) adds that of step k. Of numbers that are far from denormals.
template <typename AddProduct>
double SumOf(const Arithmetic& rule, int64_t steps, double sum, AddProduct add) {
  if (rule.lanes == 1) {
    for (int64_t k = 0; k < steps; ++k) {
      const bool alone = k % 2 == 0 && k + 1 == steps;
      sum = add(rule.pair == 1 || alone ? k : k ^ 1, sum);
    }
    return sum;
  }
  for (int64_t begin = 0; begin < steps; begin += rule.chain) {
    double lanes[2] = {0, 0};
    for (int64_t k = begin; k < std::min(begin + rule.chain, steps); ++k) lanes[k % 2] = add(k, lanes[k % 2]);
    sum = Add(rule.sum, sum, Add(rule.sum, lanes[0], lanes[1]));
  }
  return sum;
}

class Microkernels : public IsaTest {
 protected:
  // b in rows as it lies, or a strip.
  struct Tile {
    const KernelRow& row;
    Microkernel* run;
    int64_t mr, nr;
    DType b_type;
    bool packed = false, expands = false;

    int64_t b_stride() const { return packed ? nr : nr + 3; }
    int64_t b_elements(int64_t k) const { return packed ? PanelElements(row.rhs, k, nr) : (k - 1) * b_stride() + nr; }
    int64_t AtOfB(int64_t k, int64_t j) const { return packed ? AtStep(row.rhs, k, j, nr) : k * b_stride() + j; }
  };

  // What follows of a chain: it starts or goes on, is stored back or finished, as the first or a later one.
  struct Phase {
    int64_t k;
    bool start, finish, first;
  };

  // Zeros where an odd last step has its partner.
  Values Panel(const PanelLayout& layout, int64_t k, int64_t width) {
    Values panel(layout.element, PanelElements(layout, k, width), random_);
    for (int64_t j = 0; k % layout.k_group != 0 && j < width; ++j) panel.Set(AtStep(layout, k, j, width), 0);
    return panel;
  }

  void ExpectContract(const Tile& tile, const Phase& phase) {
    const Arithmetic& rule = ArithmeticOf(tile.row);
    const DType sums = rule.sum;
    const std::string what = absl::StrCat(rule.name, " ", tile.mr, "x", tile.nr, " k ", phase.k, " start ", phase.start,
                                          " finish ", phase.finish, " first ", phase.first, " b ", NameOf(tile.b_type));
    const Values a = Panel(tile.row.lhs, phase.k, tile.mr);
    const Values b =
        tile.packed ? Panel(tile.row.rhs, phase.k, tile.nr) : Values(tile.b_type, tile.b_elements(phase.k), random_);
    const Values chain(sums, tile.mr * tile.nr, random_), total(sums, tile.mr * tile.nr, random_);
    const Values result(sums, tile.mr * tile.nr, random_), strip = Panel(tile.row.rhs, phase.k, tile.nr);
    std::vector<double> want_chain = chain.All(), want_result = result.All(), want_strip = strip.All();
    const std::vector<double> want_total = total.All();
    for (int64_t i = 0; i < tile.mr; ++i) {
      for (int64_t j = 0; j < tile.nr; ++j) {
        const int64_t at = i * tile.nr + j;
        const double sum = SumOf(rule, phase.k, phase.start ? 0 : want_chain[at], [&](int64_t k, double before) {
          return Fma(sums, a[AtStep(tile.row.lhs, k, i, tile.mr)], b[tile.AtOfB(k, j)], before);
        });
        if (!phase.finish || (rule.chain < kPanel && phase.k > rule.chain)) want_chain[at] = sum;
        if (phase.finish) want_result[at] = phase.first ? sum : Add(sums, want_total[at], sum);
      }
    }
    for (int64_t k = 0; tile.expands && k < phase.k; ++k) {
      for (int64_t j = 0; j < tile.nr; ++j) want_strip[AtStep(tile.row.rhs, k, j, tile.nr)] = b[tile.AtOfB(k, j)];
    }
    // Fetching may point anywhere, and ask for more lines than the kernel has steps.
    const char* line = nullptr;
    const int64_t lines = phase.k * random_.Below(3), moved = phase.k < 4 ? 0 : lines;
    Prefetch prefetch{.line = line, .count = lines, .run_left = 1, .run = 2, .skip = 640};
    const bool aligned = reinterpret_cast<uintptr_t>(result.data()) % 64 == 0 && tile.nr % 16 == 0;
    tile.run({.k = phase.k,
              .a = a.data(),
              .b = b.data(),
              .b_stride = tile.b_stride(),
              .strip = strip.data(),
              .chain = chain.data(),
              .total = total.data(),
              .result = result.data(),
              .result_stride = tile.nr,
              .start = phase.start,
              .finish = phase.finish,
              .first = phase.first,
              .nontemporal = aligned && random_.Below(2) == 0,
              .prefetch = &prefetch});
    ASSERT_EQ(prefetch.line - line, moved / 2 * 64 + (moved + 1) / 2 * 640) << what;
    ASSERT_EQ(prefetch.run_left, 1 + moved % 2) << what;
    if (!phase.finish || rule.chain == kPanel) {
      ASSERT_EQ(chain.All(), want_chain) << what;
    }
    ASSERT_EQ(total.All(), want_total) << what;
    ASSERT_EQ(result.All(), want_result) << what;
    ASSERT_EQ(strip.All(), want_strip) << what;
    ASSERT_TRUE(chain.SurroundingsIntact() && result.SurroundingsIntact() && strip.SurroundingsIntact()) << what;
  }

  void ExpectContract(const Tile& tile) {
    const bool adds_totals = ArithmeticOf(tile.row).chain < kPanel;
    for (int64_t k : {1, 2, 3, 4, 5, 8, 31, 33, 67}) {
      for (int flags = 0; flags < 8; ++flags) {
        const Phase phase{.k = k, .start = (flags & 1) != 0, .finish = (flags & 2) != 0, .first = (flags & 4) != 0};
        if (adds_totals ? !phase.first : phase.first && !phase.finish) continue;
        ExpectContract(tile, phase);
        if (HasFatalFailure()) return;
      }
    }
    ExpectContract(tile, {.k = 256, .start = true, .finish = true, .first = true});
  }

  absl::Span<const KernelRow> rows() const { return RowOf(GetParam()).kernels; }

  void ExpectPacked(const KernelRow& row, DType dtype, int64_t k, int64_t width, bool transposed) {
    const FormatKernels& kernels = KernelsOf(row, dtype);
    const int64_t dst_stride = RoundUp(width, row.vector), src_stride = (transposed ? k : width) + 2;
    const int64_t elements = transposed ? (width - 1) * src_stride + k : (k - 1) * src_stride + width;
    const int64_t slack = row.vector * SizeOf(ArithmeticOf(row).sum) / SizeOf(row.lhs.element);
    const Values src(dtype, elements, random_);
    const Values dst(row.lhs.element, PanelElements(row.lhs, k, dst_stride) + slack, random_);
    Prefetch prefetch{nullptr, 5, 1, 2, 640};
    const PackArgs args{src.data(), src_stride, k, width, dst.data(), dst_stride, &prefetch};
    (transposed ? kernels.pack_transposed : kernels.pack_rows)(args);
    for (int64_t kk = 0; kk < RoundUp(k, row.lhs.k_group); ++kk) {
      for (int64_t j = 0; j < width; ++j) {
        const double want = kk == k ? 0 : src[transposed ? j * src_stride + kk : kk * src_stride + j];
        ASSERT_EQ(dst[AtStep(row.lhs, kk, j, dst_stride)], want)
            << "dtype " << NameOf(dtype) << " width " << width << " k " << k << " transposed " << transposed;
      }
    }
    ASSERT_TRUE(dst.SurroundingsIntact());
  }

  // terms: 1 alpha, 2 c, 4 beta, 8 bias.
  void ExpectEpilogue(const KernelRow& row, DType dtype, int64_t columns, int terms) {
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
        if (terms & 1) r = Mul(compute, alpha[0], r);
        if (terms & 2) r = Fma(compute, terms & 4 ? beta[0] : 1, c[i * stride + j], r);
        if (terms & 8) r = Add(compute, r, bias[j]);
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
                   .c = terms & 2 ? c.data() : nullptr,
                   .alpha = terms & 1 ? alpha.data() : nullptr,
                   .beta = terms & 4 ? beta.data() : nullptr,
                   .bias = terms & 8 ? bias.data() : nullptr});
    ASSERT_EQ(out.All(), want) << "dtype " << static_cast<int>(dtype) << " columns " << columns << " terms " << terms;
    ASSERT_TRUE(out.SurroundingsIntact());
  }

  Random random_{TestSeed()};
};
RAGGEMM_FOR_EACH_ISA(Microkernels);

TEST_P(Microkernels, ReadEveryDTypeWhereItLies) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : TypesOf(row)) {
      for (int64_t mr = 1; mr <= row.rows; ++mr) {
        for (const DirectKernel& direct : KernelsOf(row, dtype).direct[mr]) {
          ASSERT_NE(direct.run, nullptr);
          ExpectContract({.row = row, .run = direct.run, .mr = mr, .nr = direct.nr, .b_type = dtype});
          ASSERT_FALSE(HasFatalFailure());
        }
        EXPECT_EQ(KernelsOf(row, dtype).direct[mr][1].nr, row.cols);
      }
    }
  }
}

TEST_P(Microkernels, ExpandEveryDType) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : TypesOf(row)) {
      for (int64_t mr = 1; mr <= row.rows; ++mr) {
        Microkernel* expand = KernelsOf(row, dtype).expand[mr];
        ASSERT_NE(expand, nullptr);
        ExpectContract({.row = row, .run = expand, .mr = mr, .nr = row.cols, .b_type = dtype, .expands = true});
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

TEST_P(Microkernels, ReadStrips) {
  for (const KernelRow& row : rows()) {
    for (int64_t mr = 1; mr <= row.rows; ++mr) {
      ASSERT_NE(row.packed[mr], nullptr);
      ExpectContract(
          {.row = row, .run = row.packed[mr], .mr = mr, .nr = row.cols, .b_type = row.rhs.element, .packed = true});
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

// Row tiles of one strip are of two heights at most, and of one width.
TEST_P(Microkernels, NeighboursAreOfOneWidth) {
  for (const KernelRow& row : rows()) {
    for (int64_t rows = row.rows + 1; rows <= 4 * row.rows; ++rows) {
      const int64_t count = (rows + row.rows - 1) / row.rows;
      const auto& direct = KernelsOf(row, TypesOf(row).front()).direct;
      const int64_t width = direct[(rows + count - 1) / count][0].nr;
      EXPECT_TRUE(direct[rows / count][0].nr == width || row.cols == width) << rows;
    }
  }
}

// Both ways to pack, for every width up to two vectors and a bit.
TEST_P(Microkernels, Packs) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : TypesOf(row)) {
      for (int64_t width = 1; width <= 2 * row.vector + 1; ++width) {
        for (int64_t k : {int64_t{1}, int64_t{3}, row.vector, row.vector + 1, 2 * row.vector + 3}) {
          ExpectPacked(row, dtype, k, width, /*transposed=*/false);
          ExpectPacked(row, dtype, k, width, /*transposed=*/true);
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

TEST_P(Microkernels, Epilogues) {
  for (const KernelRow& row : rows()) {
    for (DType dtype : ResultTypesOf(row)) {
      for (int64_t columns = 1; columns <= 2 * row.vector + 1; ++columns) {
        for (int terms = 0; terms < 16; ++terms) {
          ExpectEpilogue(row, dtype, columns, terms);
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

TEST_P(Microkernels, AreThereForEveryTypeThatCanOccur) {
  for (const KernelRow& row : rows()) {
    const bool has_f64 = ArithmeticOf(row).sum == DType::kF64;
    const FormatKernels& kernels = KernelsOf(row, DType::kF64);
    EXPECT_EQ(kernels.pack_rows != nullptr, has_f64);
    EXPECT_EQ(kernels.pack_transposed != nullptr, has_f64);
    EXPECT_EQ(kernels.pack_bias != nullptr, has_f64);
    EXPECT_EQ(kernels.epilogue != nullptr, has_f64);
  }
}

// Every bit pattern of a 16-bit type.
Tensor AllPatterns(DType dtype) {
  Tensor patterns(dtype, {kPatterns});
  for (int64_t bits = 0; bits < kPatterns; ++bits) {
    static_cast<uint16_t*>(patterns.array().data)[bits] = static_cast<uint16_t>(bits);
  }
  return patterns;
}

bool Same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

TEST_P(Microkernels, ReadEveryPattern) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor patterns = AllPatterns(dtype);
    for (const KernelRow& row : rows()) {
      const DType compute = ArithmeticOf(row).sum;
      const Tensor widened(compute, {kPatterns + row.vector});
      KernelsOf(row, dtype)
          .pack_bias({.src = patterns.array().data,
                      .src_stride = 0,
                      .k = 1,
                      .width = kPatterns,
                      .dst = widened.array().data,
                      .dst_stride = 0,
                      .prefetch = nullptr});
      for (int64_t bits = 0; bits < kPatterns; ++bits) {
        ASSERT_TRUE(Same(ToDouble(widened.array(), bits), ToDouble(patterns.array(), bits))) << bits;
      }
    }
  }
}

// Halfway between neighbours, and the next numbers of the compute type below and above: the hardest to round.
double Halfway(DType compute, const Array& patterns, int64_t i, int nudge) {
  const double next = ToDouble(patterns, std::min(i + 1, kPatterns - 1));
  const double half = RoundTo(compute, ToDouble(patterns, i) / 2 + next / 2);
  if (nudge == 0) return half;
  return compute == DType::kF32 ? std::nextafter(static_cast<float>(half), nudge * HUGE_VALF)
                                : std::nextafter(half, nudge * HUGE_VAL);
}

TEST_P(Microkernels, RoundEveryCase) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor patterns = AllPatterns(dtype);
    for (const KernelRow& row : rows()) {
      const DType compute = ArithmeticOf(row).sum;
      for (int nudge : {-1, 0, 1}) {
        const Tensor total(compute, {kPatterns + row.vector}), out(dtype, {kPatterns});
        for (int64_t i = 0; i < kPatterns; ++i) {
          StoreRounded(total.array(), i, Halfway(compute, patterns.array(), i, nudge));
        }
        EpilogueArgs args{};
        args.rows = 1;
        args.columns = kPatterns;
        args.total = total.array().data;
        args.out = out.array().data;
        KernelsOf(row, dtype).epilogue(args);
        for (int64_t i = 0; i < kPatterns; ++i) {
          const double exact = ToDouble(total.array(), i);
          ASSERT_TRUE(Same(ToDouble(out.array(), i), RoundTo(dtype, exact))) << exact;
        }
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
