#include "tests/support/test_mlp.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm::test {
namespace {

std::vector<int64_t> MatricesOf(const MlpSpec& spec, int64_t k, int64_t n, bool is_trans) {
  return is_trans ? std::vector<int64_t>{spec.local, n, k} : std::vector<int64_t>{spec.local, k, n};
}

void Product(const TestMlp& mlp, const Array& lhs, const Array& weights, bool is_trans,
             const std::optional<Array>& bias, const Array& out) {
  GroupedGemmProblem gemm;
  static_cast<Array&>(gemm.lhs) = lhs;
  static_cast<Array&>(gemm.rhs) = weights;
  static_cast<Array&>(gemm.out) = out;
  gemm.rhs.is_trans = is_trans;
  gemm.lhs.first_dims = gemm.out.first_dims = mlp.sizes.array;
  gemm.group_offset = mlp.problem.group_offset;
  gemm.bias = bias;
  ASSERT_EQ(GroupedGemm(gemm, {.executor = Executor::kSerial, .isa = Isa::kScalar}), absl::OkStatus());
}

}  // namespace

MlpSpec RandomMlpSpec(std::mt19937& random) {
  const auto up_to = [&](uint32_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  static constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  MlpSpec spec;
  spec.seed = random();
  spec.tokens = 1 + up_to(40);
  spec.hidden = up_to(90);
  spec.intermediate = up_to(70);
  spec.sizes.clear();
  for (int64_t groups = up_to(9); groups > 0; --groups) {
    spec.sizes.push_back(up_to(3) == 0 ? 0 : up_to(up_to(9) == 0 ? 600 : 20));
  }
  const auto groups = static_cast<int64_t>(spec.sizes.size());
  spec.local = up_to(1) == 0 ? groups : up_to(static_cast<uint32_t>(groups));
  spec.offset = up_to(static_cast<uint32_t>(groups - spec.local));
  spec.behind = up_to(3);
  spec.x = kTypes[up_to(2)];
  spec.weights = kTypes[up_to(2)];
  spec.out = kTypes[up_to(2)];
  spec.gate = static_cast<Gate>(up_to(3));
  spec.activation = static_cast<Activation>(up_to(spec.gate == Gate::kNone ? 4 : 5));
  spec.up_is_trans = up_to(1) != 0;
  spec.down_is_trans = up_to(1) != 0;
  spec.biases = up_to(1) != 0;
  spec.row_weights = up_to(1) != 0;
  return spec;
}

void FloatTensor::FillWithRandom(std::mt19937& random, double scale) {
  std::uniform_real_distribution<double> uniform(-scale, scale);
  for (int64_t i = 0; i < ElementCount(array); ++i) StoreRounded(array, i, uniform(random));
}

TestMlp::TestMlp(const MlpSpec& spec)
    : spec(spec),
      random(spec.seed),
      rows(std::accumulate(spec.sizes.begin(), spec.sizes.end(), int64_t{0})),
      columns((spec.gate == Gate::kHalves || spec.gate == Gate::kInterleaved ? 2 : 1) * spec.intermediate),
      x(spec.x, {spec.tokens, spec.hidden}),
      row_tokens(DType::kS32, {rows + spec.behind}),
      sizes(DType::kS32, {static_cast<int64_t>(spec.sizes.size())}),
      offset(DType::kS32, {}),
      w_up(spec.weights, MatricesOf(spec, spec.hidden, columns, spec.up_is_trans)),
      w_gate(spec.weights, MatricesOf(spec, spec.hidden, columns, spec.up_is_trans)),
      w_down(spec.weights, MatricesOf(spec, spec.intermediate, spec.hidden, spec.down_is_trans)),
      b_up(DType::kF32, {spec.local, columns}),
      b_gate(DType::kBF16, {spec.local, columns}),
      b_down(DType::kF32, {spec.local, spec.hidden}),
      row_weights(DType::kF32, {rows + spec.behind}),
      out(spec.out, {spec.tokens, spec.hidden}),
      workspace_size(static_cast<size_t>(MoeMlpWorkspaceSize(Extents()))),
      workspace(DType::kS64, {static_cast<int64_t>(workspace_size)}) {
  for (FloatTensor* matrix : {&x, &w_up, &w_gate, &w_down, &b_up, &b_gate, &b_down, &row_weights}) {
    matrix->FillWithRandom(random, matrix == &w_up || matrix == &w_gate ? .5 : 1);
  }
  for (int64_t r = 0; r < rows + spec.behind; ++r) {
    const bool exists = r < rows;
    static_cast<int32_t*>(row_tokens.array.data)[r] =
        exists ? static_cast<int32_t>(random() % static_cast<uint32_t>(spec.tokens)) : 1 << 30;
  }
  for (size_t g = 0; g < spec.sizes.size(); ++g) {
    static_cast<int32_t*>(sizes.array.data)[g] = static_cast<int32_t>(spec.sizes[g]);
  }
  *static_cast<int32_t*>(offset.array.data) = static_cast<int32_t>(spec.offset);
  problem.x = x.array;
  problem.row_tokens = row_tokens.array;
  problem.group_sizes = sizes.array;
  problem.w_up = w_up.array;
  problem.w_down = w_down.array;
  problem.out = out.array;
  if (spec.local != static_cast<int64_t>(spec.sizes.size())) problem.group_offset = offset.array;
  if (spec.gate == Gate::kSeparate) problem.w_gate = w_gate.array;
  if (spec.gate == Gate::kHalves) problem.merged = Merged::kHalves;
  if (spec.gate == Gate::kInterleaved) problem.merged = Merged::kInterleaved;
  if (spec.row_weights) problem.row_weights = row_weights.array;
  if (spec.biases) {
    problem.b_up = b_up.array;
    if (problem.w_gate) problem.b_gate = b_gate.array;
    problem.b_down = b_down.array;
  }
  problem.up_is_trans = spec.up_is_trans;
  problem.down_is_trans = spec.down_is_trans;
  problem.activation = spec.activation;
}

MoeMlpExtents TestMlp::Extents() const {
  return {spec.tokens, spec.hidden, spec.intermediate, rows + spec.behind, static_cast<int64_t>(spec.sizes.size())};
}

void TestMlp::ClearOut() {
  if (BytesOf(out.array) != 0) std::memset(out.array.data, 0x55, static_cast<size_t>(BytesOf(out.array)));
}

absl::Status TestMlp::Run(const Options& options) {
  ClearOut();
  return MoeMlp(problem, options, Workspace());
}

std::vector<uint64_t> TestMlp::OutBits() const {
  std::vector<uint64_t> bits;
  for (int64_t i = 0; i < ElementCount(out.array); ++i) bits.push_back(BitsOf(out.array, i));
  return bits;
}

bool TestMlp::SurroundingsIntact() const {
  for (const FloatTensor* tensor : {&x, &row_tokens, &sizes, &offset, &w_up, &w_gate, &w_down, &b_up, &b_gate, &b_down,
                                    &row_weights, &out, &workspace}) {
    if (!tensor->tensor.buffer().SurroundingsIntact()) return false;
  }
  return true;
}

std::vector<uint64_t> SequenceBits(const TestMlp& mlp) {
  const MlpSpec& spec = mlp.spec;
  const MoeMlpProblem& problem = mlp.problem;
  const int64_t rows = mlp.rows, inner = spec.intermediate;
  FloatTensor gathered(spec.x, {rows, spec.hidden}), up(DType::kF32, {rows, mlp.columns}),
      gate(DType::kF32, {rows, inner});
  const int64_t bytes = BytesOf(spec.x, spec.hidden);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<char*>(gathered.array.data) + r * bytes,
                static_cast<const char*>(mlp.x.array.data) + mlp.TokenOf(r) * bytes, static_cast<size_t>(bytes));
  }
  Product(mlp, gathered.array, problem.w_up, spec.up_is_trans, problem.b_up, up.array);
  if (problem.w_gate) Product(mlp, gathered.array, *problem.w_gate, spec.up_is_trans, problem.b_gate, gate.array);
  FloatTensor a(spec.weights, {rows, inner}), d(DType::kF32, {rows, spec.hidden});
  const KernelRow& scalar = KernelsFor(Isa::kScalar, kArithmetics[0]);
  Activate* const activate = KernelsOf(scalar, spec.weights).activate[static_cast<int>(spec.activation)];
  const auto* u = static_cast<const float*>(up.array.data);
  const auto* v = static_cast<const float*>(gate.array.data);
  for (int64_t i = 0; i < rows * inner; ++i) {
    const int64_t row = i / inner, col = i % inner;
    float two[2] = {u[i], 0};
    if (spec.gate == Gate::kSeparate) std::tie(two[0], two[1]) = std::pair{v[i], u[i]};
    if (spec.gate == Gate::kHalves) {
      std::tie(two[0], two[1]) = std::pair{u[2 * row * inner + col], u[(2 * row + 1) * inner + col]};
    }
    if (spec.gate == Gate::kInterleaved) std::tie(two[0], two[1]) = std::pair{u[2 * i], u[2 * i + 1]};
    activate({.count = 1,
              .gate = two,
              .up = mlp.IsGated() ? two + 1 : nullptr,
              .interleaved = false,
              .out = static_cast<char*>(a.array.data) + BytesOf(spec.weights, i)});
  }
  Product(mlp, a.array, problem.w_down, spec.down_is_trans, problem.b_down, d.array);
  return BitsOfSums(mlp, d.array);
}

std::vector<uint64_t> BitsOfSums(const TestMlp& mlp, const Array& d) {
  const MlpSpec& spec = mlp.spec;
  std::vector<float> sums(static_cast<size_t>(spec.tokens * spec.hidden));
  int64_t row = 0;
  for (int64_t g = 0; g < static_cast<int64_t>(spec.sizes.size()); ++g) {
    for (int64_t i = 0; i < spec.sizes[g]; ++i, ++row) {
      if (g < spec.offset || g >= spec.offset + spec.local) continue;
      const float weight = spec.row_weights ? static_cast<float>(mlp.row_weights.At(row)) : 1;
      for (int64_t h = 0; h < spec.hidden; ++h) {
        float& sum = sums[mlp.TokenOf(row) * spec.hidden + h];
        sum = std::fma(weight, static_cast<const float*>(d.data)[row * spec.hidden + h], sum);
      }
    }
  }
  FloatTensor out(spec.out, {spec.tokens, spec.hidden});
  std::vector<uint64_t> bits;
  for (size_t i = 0; i < sums.size(); ++i) {
    StoreRounded(out.array, static_cast<int64_t>(i), sums[i]);
    bits.push_back(BitsOf(out.array, static_cast<int64_t>(i)));
  }
  return bits;
}

}  // namespace raggemm::test
