#include "bench/operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/check/problem.h"
#include "raggemm/element.h"
#include "tests/oracle/values.h"

namespace raggemm::bench {
namespace {

constexpr int64_t kPage = 4096;
// Chunk that a thread takes at once: elements to widen, or bytes to zero.
constexpr int64_t kChunk = 1 << 16;

// Returns the random elements that arenas repeat. Their number is a prime, so that no two matrices start with the same
// elements. Keeps the elements, because making them takes longer than filling a small arena.
const std::vector<char>& Sequence(DType dtype, DType precision) {
  static auto& made = *new std::map<std::pair<DType, DType>, std::vector<char>>;
  std::vector<char>& sequence = made[{dtype, precision}];
  if (!sequence.empty()) return sequence;
  constexpr int64_t kElements = 65521;
  const Format& format = FormatOf(dtype);
  const bool is_quantized = IsQuantized(dtype);
  sequence.resize(BytesOf(dtype, kElements));
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> values(format.role == Role::kScale ? 0x1p-20 : -1, 1);
  const double range = is_quantized ? std::ldexp(1, format.max_exponent) : 1;
  for (int64_t i = 0; i < kElements; ++i) {
    const double value = range * values(random);
    StoreRounded({sequence.data(), dtype, {kElements}}, i, is_quantized ? value : RoundTo(precision, value));
  }
  return sequence;
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void Widen(const uint16_t* from, uint32_t* to,
                                                                        int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) to[i] = static_cast<uint32_t>(from[i]) << 16;
}

void WidenMatrix(const void* from, const void* to, int64_t elements, int threads) {
  const auto* narrow = static_cast<const uint16_t*>(from);
  // A GemmSeries has const pointers to its operands.
  auto* wide = static_cast<uint32_t*>(const_cast<void*>(to));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t at = 0; at < elements; at += kChunk) Widen(narrow + at, wide + at, std::min(kChunk, elements - at));
}

// Writes zeros with non-temporal stores, as a library for gradients would. Stores 8 bytes at a time (MOVNTI), because
// vectors need compiler flags.
void ZeroChunk(char* begin, int64_t bytes) {
  constexpr int64_t kWord = sizeof(uint64_t);
  const int64_t before = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(begin) & (kWord - 1));
  const int64_t end = before + (bytes - before) / kWord * kWord;
  std::memset(begin, 0, before);
  for (int64_t at = before; at < end; at += kWord) {
    asm volatile("movnti %1, (%0)" : : "r"(begin + at), "r"(uint64_t{0}) : "memory");
  }
  std::memset(begin + end, 0, bytes - end);
  asm volatile("sfence" : : : "memory");
}

}  // namespace

Arena::Arena(int64_t bytes, DType dtype, DType precision)
    : bytes_((bytes + kPage - 1) / kPage * kPage),
      memory_(static_cast<char*>(std::aligned_alloc(kPage, static_cast<size_t>(bytes_)))) {
  if (memory_ == nullptr) throw std::bad_alloc();
  const std::vector<char>& sequence = Sequence(dtype, precision);
  const int64_t period = static_cast<int64_t>(sequence.size());
  for (int64_t at = 0; at < bytes_; at += period) {
    std::memcpy(memory_.get() + at, sequence.data(), static_cast<size_t>(std::min(period, bytes_ - at)));
  }
}

SetBytes SetBytesOf(const Case& c) {
  const int64_t rows = c.rows(), in = SizeOf(c.in), out = SizeOf(c.out);
  const int64_t matrices = static_cast<int64_t>(c.sizes.size()) * c.k * c.n;
  if (c.mode == Mode::kWgrad) return {rows * c.k * in, rows * c.n * in, matrices * out};
  SetBytes bytes = {rows * c.k * in, BytesOf(c.rhs(), matrices), rows * c.n * out};
  if (c.quantization == nullptr) return bytes;
  if (c.quantization->scales_rows) bytes.lhs_scale = rows * SizeOf(DType::kF32);
  const DType scale = c.quantization->rhs_scale.value_or(DType::kF32);
  bytes.rhs_scale = BytesOf(scale, static_cast<int64_t>(c.sizes.size()) * c.scales_of_group());
  return bytes;
}

int64_t SetsOf(const Case& c) {
  const int64_t bytes = c.mode == Mode::kWgrad ? SetBytesOf(c).out : BytesOf(c.rhs(), c.active_groups() * c.k * c.n);
  return std::max<int64_t>(1, (kBeyondCaches + bytes - 1) / bytes);
}

std::vector<absl::Span<const char>> MatricesOf(const Case& c, const Operands& at) {
  if (c.mode == Mode::kWgrad) return {{at.out, static_cast<size_t>(SetBytesOf(c).out)}};
  std::vector<absl::Span<const char>> matrices;
  const auto bytes = static_cast<size_t>(BytesOf(c.rhs(), c.k * c.n));
  for (size_t g = 0; g < c.sizes.size(); ++g) {
    if (c.sizes[g] == 0) continue;
    const char* const begin = at.rhs + g * bytes;
    if (!matrices.empty() && matrices.back().end() == begin) {
      matrices.back() = {matrices.back().data(), matrices.back().size() + bytes};
    } else {
      matrices.emplace_back(begin, bytes);
    }
  }
  return matrices;
}

Memory::Memory(const std::vector<Case>& cases, DType precision) {
  SetBytes most = {0, 0, 0};
  for (const Case& c : cases) {
    const SetBytes set = SetBytesOf(c);
    for (auto bytes : {&SetBytes::lhs, &SetBytes::rhs, &SetBytes::out, &SetBytes::lhs_scale, &SetBytes::rhs_scale}) {
      most.*bytes = std::max(most.*bytes, SetsOf(c) * set.*bytes);
    }
  }
  const Case first = cases.empty() ? Case() : cases[0];
  lhs_ = std::make_unique<Arena>(most.lhs, first.in, precision);
  rhs_ = std::make_unique<Arena>(most.rhs, first.rhs(), precision);
  out_ = std::make_unique<Arena>(most.out, DType::kF32, DType::kF32);
  const std::optional<DType> given = first.quantization != nullptr ? first.quantization->rhs_scale : std::nullopt;
  const DType scale = given.value_or(DType::kF32);
  lhs_scale_ = std::make_unique<Arena>(most.lhs_scale, DType::kF32, DType::kF32);
  rhs_scale_ = std::make_unique<Arena>(most.rhs_scale, scale, scale);
}

Operands Memory::SetOf(const Case& c, int64_t set) const {
  const SetBytes bytes = SetBytesOf(c);
  return {lhs_->data() + set * bytes.lhs, rhs_->data() + set * bytes.rhs, out_->data() + set * bytes.out,
          lhs_scale_->data() + set * bytes.lhs_scale, rhs_scale_->data() + set * bytes.rhs_scale};
}

Series::Series(const Case& c, const Operands& at)
    : mode_(c.mode), in_(c.in), dtype_rhs_(c.rhs()), dtype_out_(c.out), k_(c.k), n_(c.n) {
  const bool scales_rows = c.quantization != nullptr && c.quantization->scales_rows;
  const int64_t scales = c.scales_of_group();
  if (scales != 0) {
    dtype_scale_ = *c.quantization->rhs_scale;
    block_ = c.k / (scales / c.n);
  }
  const int64_t in = SizeOf(c.in), out = SizeOf(c.out), matrix = c.k * c.n;
  int64_t row = 0;
  for (size_t g = 0; g < c.sizes.size(); ++g) {
    const int64_t group = static_cast<int64_t>(g) * matrix;
    const bool wgrad = c.mode == Mode::kWgrad;
    if (c.sizes[g] == 0) {
      if (wgrad) empty_gradients_.push_back({at.out + group * out, matrix * out});
      continue;
    }
    rows_.push_back(c.sizes[g]);
    lhs_.push_back(at.lhs + row * c.k * in);
    rhs_.push_back(at.rhs + BytesOf(c.rhs(), wgrad ? row * c.n : group));
    out_.push_back(at.out + (wgrad ? group : row * c.n) * out);
    if (scales_rows) lhs_scale_.push_back(at.lhs_scale + row * SizeOf(DType::kF32));
    if (scales != 0) rhs_scale_.push_back(at.rhs_scale + BytesOf(dtype_scale_, static_cast<int64_t>(g) * scales));
    row += c.sizes[g];
  }
}

GemmSeries Series::gemms() const {
  return {.mode = mode_,
          .lhs_dtype = in_,
          .rhs_dtype = dtype_rhs_,
          .out_dtype = dtype_out_,
          .k = k_,
          .n = n_,
          .rows = rows_,
          .lhs = lhs_,
          .rhs = rhs_,
          .out = out_,
          .lhs_scale = lhs_scale_,
          .rhs_scale = rhs_scale_,
          .rhs_scale_dtype = dtype_scale_,
          .block = block_};
}

GroupedCall::GroupedCall(const Case& c, const std::vector<int64_t>& sizes) : sizes_(sizes.begin(), sizes.end()) {
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto groups = static_cast<int64_t>(sizes.size());
  const Array dims_array{sizes_.data(), DType::kS32, {groups}};
  problem_.lhs.dims = {rows, c.k};
  problem_.lhs.first_dims = dims_array;
  switch (c.mode) {
    case Mode::kForward:
      problem_.rhs.dims = {groups, c.k, c.n};
      problem_.out.dims = {rows, c.n};
      problem_.out.first_dims = dims_array;
      break;
    case Mode::kForwardTransposed:
      problem_.rhs.dims = {groups, c.n, c.k};
      problem_.rhs.is_trans = true;
      problem_.out.dims = {rows, c.n};
      problem_.out.first_dims = dims_array;
      break;
    case Mode::kWgrad:
      problem_.lhs.is_trans = true;
      problem_.rhs.dims = {rows, c.n};
      problem_.rhs.first_dims = dims_array;
      problem_.out.dims = {groups, c.k, c.n};
      break;
  }
  problem_.lhs.dtype = c.in;
  problem_.rhs.dtype = c.rhs();
  problem_.out.dtype = c.out;
  if (c.quantization == nullptr) return;
  if (c.quantization->scales_rows) problem_.lhs_scale = Array{nullptr, DType::kF32, {rows, 1}};
  if (!c.quantization->rhs_scale) return;
  problem_.rhs_scale = Array{nullptr, *c.quantization->rhs_scale, {groups, c.scales_of_group() / c.n, c.n}};
}

absl::Status GroupedCall::Run(const Operands& at, const Options& options) {
  return GroupedGemm(ProblemAt(at), options);
}

const GroupedGemmProblem& GroupedCall::ProblemAt(const Operands& at) {
  problem_.lhs.data = at.lhs;
  problem_.rhs.data = at.rhs;
  problem_.out.data = at.out;
  if (problem_.lhs_scale) problem_.lhs_scale->data = at.lhs_scale;
  if (problem_.rhs_scale) problem_.rhs_scale->data = at.rhs_scale;
  return problem_;
}

void WidenBf16(const GemmSeries& narrow, const GemmSeries& wide, int threads) {
  for (size_t i = 0; i < narrow.rows.size(); ++i) {
    const int64_t rows = narrow.rows[i];
    WidenMatrix(narrow.lhs[i], wide.lhs[i], rows * narrow.k, threads);
    WidenMatrix(narrow.rhs[i], wide.rhs[i], (narrow.mode == Mode::kWgrad ? rows : narrow.k) * narrow.n, threads);
  }
}

void ZeroBytes(char* begin, int64_t bytes, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t at = 0; at < bytes; at += kChunk) ZeroChunk(begin + at, std::min(kChunk, bytes - at));
}

}  // namespace raggemm::bench
