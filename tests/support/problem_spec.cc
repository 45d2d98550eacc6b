#include "tests/support/problem_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "raggemm/element.h"
#include "tests/oracle/values.h"
#include "tests/support/isa_fixture.h"

namespace raggemm::test {
namespace {

struct Shapes {
  std::vector<int64_t> lhs, rhs, out;
};

int64_t SumOfProducts(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  int64_t sum = 0;
  for (size_t g = 0; g < a.size(); ++g) sum += a[g] * b[g];
  return sum;
}

// Returns the shape of a stack of matrices [a, b], or [b, a] if flipped, without a group axis.
std::vector<int64_t> Stack(int64_t count, int64_t a, int64_t b, bool flipped) {
  return flipped ? std::vector<int64_t>{count * b, a} : std::vector<int64_t>{count * a, b};
}

// Returns the shape of matrices [a, b], or [b, a] if flipped, with a group axis.
std::vector<int64_t> Groups(int64_t count, int64_t a, int64_t b, bool flipped) {
  return flipped ? std::vector<int64_t>{count, b, a} : std::vector<int64_t>{count, a, b};
}

std::vector<int64_t> ColumnBlocks(int64_t count, const ProblemSpec& s) {
  const int64_t cols = s.rhs_layout == Layout::kWordBlocks ? kWordColumns : s.block_cols;
  return {count, (s.n + cols - 1) / cols, s.k, cols};
}

Shapes ShapesOf(const ProblemSpec& s) {
  const int64_t segments = s.problems * s.replicas, locals = s.problems * s.local_groups.value_or(s.groups);
  switch (s.mode) {
    case RaggedMode::kRaggedM:
      return {.lhs = Stack(segments, s.lhs_rows.value_or(s.m), s.k, s.lhs_flipped),
              .rhs = IsBlocked(s.rhs_layout) ? ColumnBlocks(locals, s) : Groups(locals, s.k, s.n, s.rhs_flipped),
              .out = {segments * s.m, s.n}};
    case RaggedMode::kRaggedK:
      return {.lhs = Stack(segments, s.k, s.m, s.lhs_flipped),
              .rhs = Stack(segments, s.k, s.n, s.rhs_flipped),
              .out = {locals, s.m, s.n}};
    case RaggedMode::kRaggedN:
      return {.lhs = s.lhs_grouped ? Groups(locals, s.m, s.k, s.lhs_flipped) : Stack(segments, s.m, s.k, s.lhs_flipped),
              .rhs = Stack(s.problems, s.k, s.n, s.rhs_flipped),
              .out = {segments * s.m, s.n}};
    case RaggedMode::kUniform:
      return {.lhs = Groups(s.groups, s.m, s.k, s.lhs_flipped),
              .rhs = Groups(s.groups, s.k, s.n, s.rhs_flipped),
              .out = {s.groups, s.m, s.n}};
    case RaggedMode::kAllRagged:
      break;
  }
  return {.lhs = {SumOfProducts(s.sizes, s.k_sizes)},
          .rhs = {SumOfProducts(s.k_sizes, s.n_sizes)},
          .out = {SumOfProducts(s.sizes, s.n_sizes) + s.slack}};
}

double SpecialValue(DType dtype, Random& random) {
  const Format& format = FormatOf(dtype);
  if (format.IsInteger()) {
    const double half = std::ldexp(1, format.bits - 1);
    const double values[] = {0, 1, 2 * half - 1, half, half - 1};
    return values[random.Below(std::size(values))];
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const double magnitudes[] = {
      0, 1, infinity, infinity - infinity, format.SmallestSubnormal(), std::ldexp(1, format.min_exponent)};
  const double magnitude = magnitudes[random.Below(std::size(magnitudes))];
  return random.Coin() ? -magnitude : magnitude;
}

}  // namespace

ProblemSpec OneGroup(DType lhs, DType rhs, int64_t m, int64_t n, int64_t k) {
  ProblemSpec spec{.m = m, .n = n, .k = k, .sizes = {m}};
  spec.lhs = lhs;
  spec.rhs = rhs;
  return spec;
}

std::vector<int64_t> QuantParamsDims(const Dims& stored, const std::vector<int64_t>& blocks, int64_t rows) {
  if (blocks.size() < 2) return blocks[0] == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{rows};
  std::vector<int64_t> dims(stored.begin(), stored.end());
  for (int axis : {0, 1}) {
    int64_t& extent = dims[dims.size() - 2 + axis];
    extent = blocks[axis] == 0 ? 1 : std::max(extent / blocks[axis], std::min<int64_t>(extent, 1));
  }
  if (blocks.size() == 3) dims[0] = 1;
  return dims;
}

uint64_t TestSeed() {
  const char* text = std::getenv("RAGGEMM_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 20240607;
}

bool Sampled(int64_t one_in) {
  static const bool is_full = std::getenv("RAGGEMM_FULL_TESTS") != nullptr;
  static Random random(TestSeed());
  // Half as many cases are enough with software units: the same tests also run without them.
  return is_full || random.Below(kUnitsAreSoftware ? 2 * one_in : one_in) == 0;
}

uint64_t Random::Next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::vector<int64_t> Random::Sizes(int64_t groups, int64_t total) {
  std::vector<int64_t> cuts(groups + 1, 0);
  for (int64_t& cut : cuts) cut = Below(total + 1);
  cuts.front() = 0;
  if (Coin()) cuts.back() = total;
  std::sort(cuts.begin(), cuts.end());
  std::vector<int64_t> sizes;
  for (int64_t g = 0; g < groups; ++g) sizes.push_back(Below(4) == 0 ? 0 : cuts[g + 1] - cuts[g]);
  return sizes;
}

void StoreNearest(const Array& array, int64_t index, double value) {
  if (array.dtype != DType::kF32) return StoreRounded(array, index, value);
  static_cast<float*>(array.data)[index] = static_cast<float>(value);
}

Tensor::Tensor(DType dtype, std::vector<int64_t> dims, int64_t gap_elements, Cliff cliff)
    : dtype_(dtype),
      dims_(std::move(dims)),
      buffer_(BytesOf({nullptr, dtype, dims_}), gap_elements * SizeOf(dtype), cliff) {}

TestProblem::TestProblem(const ProblemSpec& spec, Contents contents)
    : random_(spec.seed),
      contents_(contents),
      gap_elements_(spec.gap_elements),
      cliff_(spec.cliff),
      special_values_(spec.special_values) {
  const Shapes shapes = ShapesOf(spec);
  static_cast<Array&>(problem.lhs) = AddRandom(spec.lhs, shapes.lhs);
  static_cast<Array&>(problem.rhs) = AddRandom(spec.rhs, shapes.rhs);
  static_cast<Array&>(problem.out) = tensors_.emplace_back(spec.out, shapes.out, gap_elements_, cliff_).array();
  problem.lhs.layout = spec.lhs_layout;
  problem.rhs.layout = spec.rhs_layout;
  problem.out.layout = spec.out_layout;
  problem.bf16_sums = spec.bf16_sums;
  problem.precision = spec.precision;
  problem.lhs_block = spec.lhs_block;
  problem.activation = spec.activation;
  problem.activation_alpha = spec.activation_alpha;
  problem.activation_limit = spec.activation_limit;
  SetRaggedDims(spec);
  AddOptionalOperands(spec);
  if (spec.lhs_block && contents_ != Contents::kNone) FillRunsOfLhs();
  if (contents_ != Contents::kNone) ClearOut();
}

// Adds the arrays of group sizes, separate ones for each operand.
void TestProblem::SetRaggedDims(const ProblemSpec& spec) {
  const bool batched = spec.problems * spec.replicas != 1;
  const std::vector<int64_t> shape =
      batched ? std::vector<int64_t>{spec.problems, spec.replicas, spec.groups} : std::vector<int64_t>{spec.groups};
  const auto add = [&](const std::vector<int64_t>& sizes) { return AddIntegers(spec.sizes_type, shape, sizes); };
  BufferDescriptor &lhs = problem.lhs, &rhs = problem.rhs, &out = problem.out;
  lhs.is_trans = spec.lhs_flipped;
  rhs.is_trans = spec.rhs_flipped;
  switch (spec.mode) {
    case RaggedMode::kRaggedM:
      (spec.lhs_flipped ? lhs.last_dims : lhs.first_dims) = add(spec.sizes);
      out.first_dims = add(spec.sizes);
      break;
    case RaggedMode::kRaggedK:
      lhs.is_trans = !spec.lhs_flipped;
      (spec.lhs_flipped ? lhs.last_dims : lhs.first_dims) = add(spec.sizes);
      (spec.rhs_flipped ? rhs.last_dims : rhs.first_dims) = add(spec.sizes);
      break;
    case RaggedMode::kRaggedN:
      (spec.rhs_flipped ? rhs.first_dims : rhs.last_dims) = add(spec.sizes);
      out.last_dims = add(spec.sizes);
      break;
    case RaggedMode::kUniform:
      break;
    case RaggedMode::kAllRagged:
      lhs.first_dims = add(spec.lhs_flipped ? spec.k_sizes : spec.sizes);
      lhs.last_dims = add(spec.lhs_flipped ? spec.sizes : spec.k_sizes);
      rhs.first_dims = add(spec.rhs_flipped ? spec.n_sizes : spec.k_sizes);
      rhs.last_dims = add(spec.rhs_flipped ? spec.k_sizes : spec.n_sizes);
      out.first_dims = add(spec.sizes);
      out.last_dims = add(spec.n_sizes);
      break;
  }
}

void TestProblem::AddOptionalOperands(const ProblemSpec& spec) {
  const int64_t locals = spec.problems * spec.local_groups.value_or(spec.groups);
  const bool per_replica = spec.parameter_rows == ParameterRows::kPerReplica;
  const int64_t rows = per_replica ? locals * spec.replicas : locals;
  const bool is_f64 = spec.lhs == DType::kF64 || spec.rhs == DType::kF64 || spec.out == DType::kF64;
  const DType compute = spec.out == DType::kS32 ? DType::kS32 : is_f64 ? DType::kF64 : DType::kF32;
  const auto add_parameter = [&] {
    return AddRandom(compute,
                     spec.parameter_rows == ParameterRows::kScalar ? std::vector<int64_t>{} : std::vector{rows});
  };
  if (spec.c) problem.c = AddRandom(spec.out, {problem.out.dims.begin(), problem.out.dims.end()});
  if (spec.bias) problem.bias = AddRandom(spec.bias_type, {rows, spec.n});
  if (spec.alpha) problem.alpha = add_parameter();
  if (spec.beta) problem.beta = add_parameter();
  const auto add_quant_params = [&](const BufferDescriptor& x, const std::vector<int64_t>& blocks, DType dtype) {
    const int64_t columns = x.layout == Layout::kWordBlocks ? x.dims[1] * x.dims[3] : spec.n;
    return AddQuantParams(
        dtype, QuantParamsDims(IsBlocked(x.layout) ? Dims{x.dims[0], x.dims[2], columns} : x.dims, blocks, rows));
  };
  if (!spec.lhs_scale.empty()) problem.lhs_scale = add_quant_params(problem.lhs, spec.lhs_scale, spec.scale_type);
  if (!spec.rhs_scale.empty()) problem.rhs_scale = add_quant_params(problem.rhs, spec.rhs_scale, spec.scale_type);
  if (!spec.lhs_zero.empty()) problem.lhs_zero = add_quant_params(problem.lhs, spec.lhs_zero, spec.lhs);
  if (!spec.rhs_zero.empty()) problem.rhs_zero = add_quant_params(problem.rhs, spec.rhs_zero, spec.rhs);
  if (spec.gate) problem.gate = AddRandom(*spec.gate, {problem.out.dims.begin(), problem.out.dims.end()});
  if (spec.lhs_rows) problem.row_index = AddRowIndex(spec);
  if (spec.group_offset.has_value()) problem.group_offset = AddIntegers(spec.sizes_type, {}, {*spec.group_offset});
}

// Adds a random row_index. Rows that belong to no processed group get the invalid index -1.
Array TestProblem::AddRowIndex(const ProblemSpec& spec) {
  std::vector<int64_t> index;
  const int64_t first = spec.group_offset.value_or(0), end = first + spec.local_groups.value_or(spec.groups);
  for (int64_t segment = 0; segment < spec.problems * spec.replicas; ++segment) {
    std::vector<int64_t> rows(spec.m, -1);
    for (int64_t g = 0, row = 0; g < spec.groups; ++g) {
      for (int64_t i = 0; i < spec.sizes[segment * spec.groups + g]; ++i, ++row) {
        if (row < spec.m && g >= first && g < end) rows[row] = random_.Below(*spec.lhs_rows);
      }
    }
    index.insert(index.end(), rows.begin(), rows.end());
  }
  return AddIntegers(spec.sizes_type, {static_cast<int64_t>(index.size())}, index);
}

// Makes the magnitudes of scales differ so much that a wrong scale shows in results.
Array TestProblem::AddQuantParams(DType dtype, std::vector<int64_t> dims) {
  if (IsQuantized(dtype) && FormatOf(dtype).IsInteger()) return AddRandom(dtype, std::move(dims));
  Array array = tensors_.emplace_back(dtype, std::move(dims), gap_elements_, cliff_).array();
  if (contents_ == Contents::kNone) return array;
  const int spread = dtype == DType::kF8E4M3FN ? 5 : 10;
  for (int64_t i = 0; i < ElementCount(array); ++i) {
    const double magnitude = std::ldexp(1, static_cast<int>(random_.Below(2 * spread + 1)) - spread);
    const double fraction = dtype == DType::kF8E8M0FNU ? 1 : 1 + std::abs(random_.Unit());
    StoreRounded(array, i, magnitude * fraction);
  }
  return array;
}

Array TestProblem::AddRandom(DType dtype, std::vector<int64_t> dims) {
  Array array = tensors_.emplace_back(dtype, std::move(dims), gap_elements_, cliff_).array();
  if (contents_ == Contents::kNone) return array;
  for (int64_t i = 0; i < ElementCount(array); ++i) {
    const bool special = special_values_ && random_.Below(8) == 0;
    const double any = FormatOf(dtype).IsInteger() ? static_cast<double>(random_.Next() >> 32)
                       : IsQuantized(dtype)        ? 8 * random_.Unit()
                                                   : random_.Unit();
    StoreNearest(array, i, special ? SpecialValue(dtype, random_) : any);
  }
  return array;
}

// A run is half of the smallest block, so that blocks have different scales.
void TestProblem::FillRunsOfLhs() {
  constexpr int64_t kRun = 16;
  const Array& lhs = problem.lhs;
  const Format& format = FormatOf(lhs.dtype);
  const double largest = std::ldexp(2 - format.Epsilon(), format.max_exponent);
  const int64_t elements = ElementCount(lhs);
  for (int64_t begin = 0; begin < elements; begin += kRun) {
    const int64_t end = std::min(begin + kRun, elements);
    const int64_t kind = random_.Below(special_values_ ? 8 : 4);
    const double magnitude = std::ldexp(1, static_cast<int>(random_.Below(13)) - 6);
    for (int64_t i = begin; i < end; ++i) {
      const double half_codes[] = {127, -126.5, static_cast<double>(random_.Below(253)) / 2 - 63, 0.5};
      const double values[] = {0,
                               magnitude * random_.Unit(),
                               random_.Unit(),
                               random_.Unit(),
                               static_cast<double>(random_.Below(400)) * format.SmallestSubnormal(),
                               largest * random_.Unit(),
                               random_.Unit(),
                               half_codes[(i - begin) % std::size(half_codes)]};
      StoreNearest(lhs, i, values[kind]);
    }
    if (kind == 6 && random_.Below(16) == 0) {
      const double infinity = std::numeric_limits<double>::infinity();
      StoreNearest(lhs, begin + random_.Below(end - begin), random_.Coin() ? -infinity : infinity - infinity);
    }
  }
}

Array TestProblem::AddIntegers(DType dtype, std::vector<int64_t> dims, absl::Span<const int64_t> values) {
  Array array = tensors_.emplace_back(dtype, std::move(dims), gap_elements_, cliff_).array();
  char* bytes = static_cast<char*>(array.data);
  // The machine is little-endian, so the first bytes of a wide integer are the narrower integer.
  for (size_t i = 0; i < values.size(); ++i) std::memcpy(bytes + i * SizeOf(dtype), &values[i], SizeOf(dtype));
  return array;
}

void TestProblem::ClearOut() {
  if (problem.out.data != nullptr) {
    std::memset(problem.out.data, 0xFF, BytesOf(problem.out));
  }
}

void TestProblem::AliasOutWithC() {
  if (problem.out.data != nullptr) {
    std::memcpy(problem.out.data, problem.c->data, BytesOf(problem.out));
  }
  problem.c->data = problem.out.data;
}

bool TestProblem::SurroundingsIntact() const {
  return std::all_of(tensors_.begin(), tensors_.end(),
                     [](const Tensor& tensor) { return tensor.buffer().SurroundingsIntact(); });
}

}  // namespace raggemm::test
