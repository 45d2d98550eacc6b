#include "tests/support/test_mlp.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/plan/tile.h"
#include "kernels/target/isa.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/dequantizer.h"
#include "tests/oracle/values.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

std::vector<int64_t> MatricesOf(const MlpSpec& spec, int64_t k, int64_t n, bool is_trans) {
  return is_trans ? std::vector<int64_t>{spec.local_groups(), n, k} : std::vector<int64_t>{spec.local_groups(), k, n};
}

// Chooses random quantized weights. Rounds `hidden` and `intermediate` up to multiples of 32: every kind of block fits,
// and rows end at whole bytes.
void ChooseQuantized(MlpSpec& spec, std::mt19937& random) {
  static constexpr DType kScales[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0FNU, DType::kF8E4M3FN};
  static const std::vector<int64_t> kShapes[] = {{0}, {1}, {32, 0}, {0, 32}, {32, 32}, {1, 0}, {16, 1}, {32, 32, 0}};
  spec.weights = kAllQuantized[random() % std::size(kAllQuantized)];
  spec.scale = kShapes[random() % std::size(kShapes)];
  spec.scale_type = kScales[random() % std::size(kScales)];
  if (FormatOf(spec.weights).IsInteger() && random() % 2 == 0) spec.zero = kShapes[random() % std::size(kShapes)];
  if (random() % 3 == 0 && spec.zero.empty()) spec.down = DType::kBF16;
  spec.hidden = RoundUp(spec.hidden, int64_t{32});
  spec.intermediate = RoundUp(spec.intermediate, int64_t{32});
}

// Returns true if blocks of scales or zero points are permitted with lhs_block.
bool FitRoundedRows(const std::vector<int64_t>& blocks, bool is_trans) {
  return blocks.size() < 2 || blocks[is_trans ? 1 : 0] % 16 == 0;
}

}  // namespace

MlpSpec RandomMlpSpec(std::mt19937& random) {
  const auto up_to = [&](uint32_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  static constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  MlpSpec spec;
  spec.seed = random();
  spec.tokens = up_to(15) == 0 ? 0 : 1 + up_to(40);
  spec.hidden = up_to(90);
  spec.intermediate = up_to(70);
  spec.sizes.clear();
  for (int64_t groups = up_to(9); groups > 0; --groups) {
    spec.sizes.push_back(spec.tokens == 0 || up_to(3) == 0 ? 0 : up_to(up_to(9) == 0 ? 600 : 20));
  }
  if (up_to(1) != 0) spec.local = up_to(static_cast<uint32_t>(spec.groups()));
  spec.offset = up_to(static_cast<uint32_t>(spec.groups() - spec.local_groups()));
  spec.behind = up_to(3);
  spec.x = kTypes[up_to(2)];
  spec.weights = kTypes[up_to(2)];
  spec.out = kTypes[up_to(2)];
  if (up_to(3) == 0) spec.down = kTypes[up_to(2)];
  spec.sizes_type = kAllSizesTypes[up_to(2)];
  if (up_to(2) == 0) spec.bf16_sums = kBf16Rules[up_to(3)];
  spec.gate = static_cast<Gate>(up_to(3));
  do {
    spec.activation = static_cast<Activation>(up_to(kActivationCount - 1));
  } while (kNeedsGate[static_cast<int>(spec.activation)] && spec.gate == Gate::kNone);
  const auto number = [&] { return .25F * static_cast<float>(1 + up_to(15)); };
  if (up_to(1) != 0) SetNumbers(spec.activation, {number(), number()}, spec);
  spec.up_is_trans = up_to(1) != 0;
  spec.down_is_trans = up_to(1) != 0;
  spec.biases = up_to(1) != 0;
  spec.row_weights = up_to(1) != 0;
  spec.weight_on = up_to(2) == 0 ? WeightOn::kInput : WeightOn::kOutput;
  spec.row_slots = up_to(2) == 0;
  if (up_to(3) == 0) ChooseQuantized(spec, random);
  spec.alphas = IsQuantized(spec.weights) && IsQuantized(spec.down_type()) && up_to(1) != 0;
  return spec;
}

MlpSpec RandomForwardSpec(std::mt19937& random) {
  MlpSpec spec = RandomMlpSpec(random);
  const Format& weights = FormatOf(spec.weights);
  bool rounds_rows = IsQuantized(spec.weights) && !spec.down && (weights.IsInteger() || weights.bits == 4);
  for (const std::vector<int64_t>* blocks : {&spec.scale, &spec.zero}) {
    for (bool is_trans : {spec.up_is_trans, spec.down_is_trans}) {
      rounds_rows = rounds_rows && FitRoundedRows(*blocks, is_trans);
    }
  }
  rounds_rows = rounds_rows && random() % 4 != 0;
  if (rounds_rows) spec.lhs_block = random() % 3 * 32;
  const bool shares = std::ranges::any_of(std::array{spec.scale, spec.zero}, [](const std::vector<int64_t>& blocks) {
    return blocks.size() >= 2 && blocks[1] > 1;
  });
  const bool has_whole_blocks = spec.hidden % kWordColumns == 0 && spec.intermediate % kWordColumns == 0;
  const bool may_have_words = rounds_rows && weights.bits != 2 && (!shares || has_whole_blocks);
  const auto layout = [&](bool is_trans) {
    if (is_trans || random() % 2 == 0) return Layout::kStrided;
    return may_have_words && random() % 3 != 0 ? Layout::kWordBlocks : Layout::kColumnBlocks;
  };
  spec.up_layout = layout(spec.up_is_trans);
  spec.down_layout = layout(spec.down_is_trans);
  return spec;
}

void FloatTensor::FillWithRandom(std::mt19937& random, double scale) {
  std::uniform_real_distribution<double> uniform(-scale, scale);
  const bool is_integer = FormatOf(array.dtype).IsInteger();
  for (int64_t i = 0; i < ElementCount(array); ++i) {
    StoreRounded(array, i, is_integer ? static_cast<double>(random()) : uniform(random));
  }
}

// Fills the tensor with scales from 2^-9 to 2^-3. With these, products stay within f16.
void FloatTensor::FillWithScales(std::mt19937& random) {
  std::uniform_real_distribution<double> uniform(1, 2);
  for (int64_t i = 0; i < ElementCount(array); ++i) {
    const double fraction = array.dtype == DType::kF8E8M0FNU ? 1 : uniform(random);
    StoreRounded(array, i, std::ldexp(fraction, -static_cast<int>(4 + random() % 6)));
  }
}

TestMlp::TestMlp(const MlpSpec& spec)
    : spec(spec),
      random(spec.seed),
      rows(std::accumulate(spec.sizes.begin(), spec.sizes.end(), int64_t{0})),
      columns((spec.gate == Gate::kHalves || spec.gate == Gate::kInterleaved ? 2 : 1) * spec.intermediate),
      x(spec.x, {spec.tokens, spec.hidden}),
      row_tokens(spec.sizes_type, {rows + spec.behind}),
      sizes(spec.sizes_type, {spec.groups()}),
      offset(spec.sizes_type, {}),
      w_up(spec.weights, MatricesOf(spec, spec.hidden, columns, spec.up_is_trans)),
      w_gate(spec.weights, MatricesOf(spec, spec.hidden, columns, spec.up_is_trans)),
      w_down(spec.down_type(), MatricesOf(spec, spec.intermediate, spec.hidden, spec.down_is_trans)),
      b_up(DType::kF32, {spec.local_groups(), columns}),
      b_gate(DType::kBF16, {spec.local_groups(), columns}),
      b_down(DType::kF32, {spec.local_groups(), spec.hidden}),
      row_weights(DType::kF32, {rows + spec.behind}),
      row_slots(spec.sizes_type, {rows + spec.behind}),
      out(spec.out, {spec.tokens, spec.hidden}),
      workspace_size(static_cast<size_t>(MoeMlpWorkspaceSize(Extents()))),
      workspace(DType::kS64, {static_cast<int64_t>(workspace_size)}) {
  for (FloatTensor* matrix : {&x, &w_up, &w_gate, &w_down, &b_up, &b_gate, &b_down, &row_weights}) {
    matrix->FillWithRandom(random, matrix == &w_up || matrix == &w_gate ? .5 : 1);
  }
  for (int64_t r = 0; r < rows; ++r) {
    StoreRounded(row_tokens.array, r, static_cast<double>(random() % static_cast<uint32_t>(spec.tokens)));
  }
  for (int64_t r = rows; r < rows + spec.behind; ++r) StoreRounded(row_tokens.array, r, 1 << 30);
  for (int64_t r = 0; r < rows + spec.behind; ++r) StoreRounded(row_slots.array, r, static_cast<double>(random() % 5));
  for (int64_t g = 0; g < spec.groups(); ++g) StoreRounded(sizes.array, g, static_cast<double>(spec.sizes[g]));
  StoreRounded(offset.array, 0, static_cast<double>(spec.offset));
  problem.x = x.array;
  problem.row_tokens = row_tokens.array;
  problem.group_sizes = sizes.array;
  problem.w_up = w_up.array;
  problem.w_down = w_down.array;
  problem.out = out.array;
  if (spec.local) problem.group_offset = offset.array;
  if (spec.gate == Gate::kSeparate) problem.w_gate = w_gate.array;
  if (spec.gate == Gate::kHalves) problem.merged = Merged::kHalves;
  if (spec.gate == Gate::kInterleaved) problem.merged = Merged::kInterleaved;
  if (spec.row_weights) problem.row_weights = row_weights.array;
  if (spec.row_slots) problem.row_slots = row_slots.array;
  problem.weight_on = spec.weight_on;
  if (spec.biases) {
    problem.b_up = b_up.array;
    if (problem.w_gate) problem.b_gate = b_gate.array;
    problem.b_down = b_down.array;
  }
  AddQuantParams(problem.w_up, problem.up_scale, problem.up_zero);
  if (problem.w_gate) AddQuantParams(*problem.w_gate, problem.gate_scale, problem.gate_zero);
  AddQuantParams(problem.w_down, problem.down_scale, problem.down_zero);
  for (auto [matrix, alpha] : {std::pair{&problem.w_up, &problem.alpha_up},
                               {problem.w_gate ? &*problem.w_gate : nullptr, &problem.alpha_gate},
                               {&problem.w_down, &problem.alpha_down}}) {
    if (!spec.alphas || matrix == nullptr) continue;
    FloatTensor& tensor = quant_params.emplace_back(DType::kF32, std::vector{spec.local_groups()});
    tensor.FillWithScales(random);
    *alpha = tensor.array;
  }
  problem.bf16_sums = spec.bf16_sums;
  problem.lhs_block = spec.lhs_block;
  problem.up_is_trans = spec.up_is_trans;
  problem.down_is_trans = spec.down_is_trans;
  problem.activation = spec.activation;
  problem.activation_alpha = spec.activation_alpha;
  problem.activation_limit = spec.activation_limit;
  problem.up_layout = spec.up_layout;
  problem.down_layout = spec.down_layout;
  problem.w_up = InLayout(problem.w_up, spec.up_layout, 32);
  if (problem.w_gate) problem.w_gate = InLayout(*problem.w_gate, spec.up_layout, 64);
  problem.w_down = InLayout(problem.w_down, spec.down_layout, 128);
  strided = problem;
  for (std::optional<Array>* values : {&problem.up_scale, &problem.up_zero, &problem.gate_scale, &problem.gate_zero}) {
    if (spec.up_layout == Layout::kWordBlocks) OrderByBlocks(columns, *values);
  }
  for (std::optional<Array>* values : {&problem.down_scale, &problem.down_zero}) {
    if (spec.down_layout == Layout::kWordBlocks) OrderByBlocks(spec.hidden, *values);
  }
}

// Copies scales or zero points [D,D0,n] of word blocks to the order of column blocks. Padding gets ones. Values that
// columns share stay as they are.
void TestMlp::OrderByBlocks(int64_t n, std::optional<Array>& values) {
  if (!values || values->dims.size() != 3 || values->dims[2] == 1 || values->dims[2] != n) return;
  const int64_t rows = values->dims[1], count = (n + kWordColumns - 1) / kWordColumns;
  const Array copy = blocks.emplace_back(values->dtype, std::vector{values->dims[0], rows, count * kWordColumns}).array;
  for (int64_t i = 0; i < ElementCount(copy); ++i) {
    const int64_t col = i / (rows * kWordColumns) % count * kWordColumns + i % kWordColumns;
    const int64_t row = i / (count * rows * kWordColumns) * rows + i / kWordColumns % rows;
    StoreRounded(copy, i, col < n ? ToDouble(*values, row * n + col) : 1);
  }
  values = copy;
}

// Copies weights [G,K,N] to blocks of `width` columns. Padding gets ones.
Array TestMlp::InLayout(const Array& weights, Layout layout, int64_t width) {
  if (!IsBlocked(layout)) return weights;
  if (layout == Layout::kWordBlocks) width = kWordColumns;
  const int64_t k = weights.dims[1], n = weights.dims[2], count = (n + width - 1) / width;
  Array copy = blocks.emplace_back(weights.dtype, std::vector{weights.dims[0], count, k, width}).array;
  for (int64_t i = 0; i < ElementCount(copy); ++i) {
    const int64_t col = i / (k * width) % count * width + i % width, row = i / (count * k * width) * k + i / width % k;
    StoreRounded(copy, StoredIndex(layout, copy.dtype, i), col < n ? ToDouble(weights, row * n + col) : 1);
  }
  return copy;
}

void TestMlp::AddQuantParams(const Array& weights, std::optional<Array>& scale, std::optional<Array>& zero) {
  if (!IsQuantized(weights.dtype)) return;
  const auto add = [&](DType dtype, const std::vector<int64_t>& blocks) -> FloatTensor& {
    return quant_params.emplace_back(dtype, QuantParamsDims(weights.dims, blocks, spec.local_groups()));
  };
  if (!spec.scale.empty()) {
    FloatTensor& tensor = add(spec.scale_type, spec.scale);
    tensor.FillWithScales(random);
    scale = tensor.array;
  }
  if (spec.zero.empty()) return;
  FloatTensor& tensor = add(weights.dtype, spec.zero);
  tensor.FillWithRandom(random);
  zero = tensor.array;
}

MoeMlpExtents TestMlp::Extents() const {
  return {.tokens = spec.tokens,
          .hidden = spec.hidden,
          .intermediate = spec.intermediate,
          .rows = rows + spec.behind,
          .groups = spec.groups(),
          .sums_tokens = spec.out != DType::kF32,
          .has_slots = spec.row_slots,
          .rounds_rows = spec.lhs_block.has_value()};
}

void TestMlp::ClearOut() {
  if (BytesOf(out.array) != 0) std::memset(out.array.data, 0x55, static_cast<size_t>(BytesOf(out.array)));
}

absl::Status TestMlp::Run(const Options& options) {
  ClearOut();
  // Otherwise the memory may still hold the right values of an earlier call.
  std::memset(workspace.array.data, 0x55, static_cast<size_t>(BytesOf(workspace.array)));
  return MoeMlp(problem, options, Workspace());
}

std::vector<uint64_t> TestMlp::OutBits() const {
  std::vector<uint64_t> bits;
  for (int64_t i = 0; i < ElementCount(out.array); ++i) bits.push_back(BitsOfAnyNaN(out.array, i));
  return bits;
}

bool TestMlp::SurroundingsIntact() const {
  for (const FloatTensor* tensor : {&x, &row_tokens, &sizes, &offset, &w_up, &w_gate, &w_down, &b_up, &b_gate, &b_down,
                                    &row_weights, &row_slots, &out, &workspace}) {
    if (!tensor->tensor.buffer().SurroundingsIntact()) return false;
  }
  const auto is_intact = [](const FloatTensor& x) { return x.tensor.buffer().SurroundingsIntact(); };
  return std::all_of(quant_params.begin(), quant_params.end(), is_intact) &&
         std::all_of(blocks.begin(), blocks.end(), is_intact);
}

FloatTensor Gathered(const TestMlp& mlp) {
  const Array& x = mlp.x.array;
  FloatTensor gathered(x.dtype, {mlp.rows, mlp.spec.hidden});
  const int64_t bytes = BytesOf(x.dtype, mlp.spec.hidden);
  for (int64_t r = 0; r < mlp.rows && bytes != 0; ++r) {
    if (mlp.problem.weight_on == WeightOn::kInput && mlp.spec.row_weights) {
      for (int64_t h = 0; h < mlp.spec.hidden; ++h) {
        const auto value = static_cast<float>(mlp.x.At(mlp.TokenOf(r) * mlp.spec.hidden + h));
        StoreRounded(gathered.array, r * mlp.spec.hidden + h, mlp.InputWeight(r) * value);
      }
      continue;
    }
    std::memcpy(static_cast<char*>(gathered.array.data) + r * bytes,
                static_cast<const char*>(x.data) + mlp.TokenOf(r) * bytes, static_cast<size_t>(bytes));
  }
  return gathered;
}

GroupedGemmProblem ProductOf(const TestMlp& mlp, Part part, const Array& lhs, const Array& out) {
  const MoeMlpProblem& problem = mlp.problem;
  GroupedGemmProblem gemm;
  static_cast<Array&>(gemm.lhs) = lhs;
  static_cast<Array&>(gemm.rhs) = part == Part::kUp     ? mlp.w_up.array
                                  : part == Part::kGate ? mlp.w_gate.array
                                                        : mlp.w_down.array;
  static_cast<Array&>(gemm.out) = out;
  gemm.rhs.is_trans = part == Part::kDown ? problem.down_is_trans : problem.up_is_trans;
  gemm.lhs.first_dims = gemm.out.first_dims = mlp.sizes.array;
  gemm.group_offset = problem.group_offset;
  gemm.bf16_sums = problem.bf16_sums;
  gemm.lhs_block = problem.lhs_block;
  const auto choose = [&](const auto& up, const auto& gate, const auto& down) {
    return part == Part::kUp ? up : part == Part::kGate ? gate : down;
  };
  gemm.bias = choose(problem.b_up, problem.b_gate, problem.b_down);
  gemm.alpha = choose(problem.alpha_up, problem.alpha_gate, problem.alpha_down);
  gemm.rhs_scale = choose(mlp.strided.up_scale, mlp.strided.gate_scale, mlp.strided.down_scale);
  gemm.rhs_zero = choose(mlp.strided.up_zero, mlp.strided.gate_zero, mlp.strided.down_zero);
  return gemm;
}

uint64_t BitsOfAnyNaN(const Array& array, int64_t index) {
  return std::isnan(ToDouble(array, index)) ? FormatOf(array.dtype).NaN() : BitsOf(array, index);
}

void Compute(const GroupedGemmProblem& gemm) {
  ASSERT_EQ(GroupedGemm(gemm, {.executor = Executor::kSerial, .isa = Isa::kScalar}), absl::OkStatus());
}

FirstProducts FirstProductsOf(const TestMlp& mlp, const FloatTensor& gathered) {
  FirstProducts first = {{DType::kF32, {mlp.rows, mlp.columns}}, {DType::kF32, {mlp.rows, mlp.columns}}};
  Compute(ProductOf(mlp, Part::kUp, gathered.array, first.up.array));
  if (mlp.problem.w_gate) Compute(ProductOf(mlp, Part::kGate, gathered.array, first.gate.array));
  return first;
}

std::pair<float, float> FirstProducts::GateAndUp(const TestMlp& mlp, int64_t row, int64_t column) const {
  const auto* u = static_cast<const float*>(up.array.data) + row * mlp.columns;
  switch (mlp.spec.gate) {
    case Gate::kNone:
      break;
    case Gate::kSeparate:
      return {static_cast<const float*>(gate.array.data)[row * mlp.columns + column], u[column]};
    case Gate::kHalves:
      return {u[column], u[mlp.spec.intermediate + column]};
    case Gate::kInterleaved:
      return {u[2 * column], u[2 * column + 1]};
  }
  return {u[column], 0};
}

FloatTensor ActivatedRows(const TestMlp& mlp, const FirstProducts& first) {
  const DType type = mlp.spec.type_of_a();
  const int64_t inner = mlp.spec.intermediate;
  FloatTensor a(type, {mlp.rows, inner});
  const KernelRow& scalar = KernelsFor(Isa::kScalar, kArithmetics[0]);
  raggemm::Activate* const activate = KernelsOf(scalar, type).activate[static_cast<int>(mlp.spec.activation)];
  for (int64_t i = 0; i < mlp.rows * inner; ++i) {
    const auto [gate, up] = first.GateAndUp(mlp, i / inner, i % inner);
    activate({.count = 1,
              .gate = &gate,
              .up = mlp.IsGated() ? &up : nullptr,
              .interleaved = false,
              .numbers = mlp.spec.numbers(),
              .out = static_cast<char*>(a.array.data) + BytesOf(type, i)});
  }
  return a;
}

std::vector<uint64_t> SequenceBits(const TestMlp& mlp) {
  const FloatTensor a = ActivatedRows(mlp, FirstProductsOf(mlp, Gathered(mlp)));
  FloatTensor d(DType::kF32, {mlp.rows, mlp.spec.hidden});
  Compute(ProductOf(mlp, Part::kDown, a.array, d.array));
  return BitsOfSums(mlp, d.array, mlp.spec.out, &TestMlp::OutputWeight, mlp.spec.row_slots);
}

std::vector<uint64_t> BitsOfSums(const TestMlp& mlp, const Array& d, DType out, float (TestMlp::*weight)(int64_t) const,
                                 bool by_slot) {
  const MlpSpec& spec = mlp.spec;
  std::vector<float> sums(static_cast<size_t>(spec.tokens * spec.hidden));
  std::vector<int64_t> order;
  int64_t row = 0;
  for (int64_t g = 0; g < spec.groups(); ++g) {
    for (int64_t i = 0; i < spec.sizes[g]; ++i, ++row) {
      if (mlp.IsProcessed(g)) order.push_back(row);
    }
  }
  if (by_slot) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t i, int64_t j) { return mlp.row_slots.At(i) < mlp.row_slots.At(j); });
  }
  for (int64_t r : order) {
    for (int64_t h = 0; h < spec.hidden; ++h) {
      float& sum = sums[mlp.TokenOf(r) * spec.hidden + h];
      sum = std::fma((mlp.*weight)(r), static_cast<const float*>(d.data)[r * spec.hidden + h], sum);
    }
  }
  const FloatTensor rounded(out, {spec.tokens, spec.hidden});
  std::vector<uint64_t> bits;
  for (size_t i = 0; i < sums.size(); ++i) {
    StoreRounded(rounded.array, static_cast<int64_t>(i), sums[i]);
    bits.push_back(BitsOfAnyNaN(rounded.array, static_cast<int64_t>(i)));
  }
  return bits;
}

}  // namespace raggemm::test
