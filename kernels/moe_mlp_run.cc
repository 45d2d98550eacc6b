// Start reading at RunChunk: the phases of some rows, each a parallel loop.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "kernels/element.h"
#include "kernels/isa.h"
#include "kernels/moe_mlp.h"
#include "kernels/parallel_for.h"
#include "kernels/plan.h"
#include "kernels/tile.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

// Of what is moved or computed between products: smaller parts are not worth another thread.
constexpr int64_t kBytesOfPart = 64 << 10;

class MlpRun {
 public:
  MlpRun(const CheckedMlp& mlp, const Options& options) : mlp_(mlp), options_(options) {}

  absl::Status RunAll() {
    const MlpRows& rows = mlp_.rows;
    // How the first product is computed, so are the phases between products.
    const int64_t first_end = mlp_.EndOfChunk(rows.begin);
    mlp_.SetSizes(rows.begin, first_end);
    const absl::StatusOr<PlanData> first = PlanProduct(MlpProduct::kUp, rows.begin, first_end);
    if (!first.ok()) return first.status();
    team_ = *first;
    if (absl::Status s = ClearSums(); !s.ok()) return s;
    for (int64_t begin = rows.begin, end; begin < rows.end; begin = end) {
      end = mlp_.EndOfChunk(begin);
      if (absl::Status s = RunChunk(begin, end); !s.ok()) return s;
    }
    return StoreSums();
  }

 private:
  absl::Status RunChunk(int64_t begin, int64_t end) const {
    const int64_t rows = end - begin;
    mlp_.SetSizes(begin, end);
    if (absl::Status s = Gather(begin, rows); !s.ok()) return s;
    const absl::StatusOr<PlanData> up = PlanProduct(MlpProduct::kUp, begin, end);
    if (!up.ok()) return up.status();
    if (mlp_.problem.w_gate) {
      const absl::StatusOr<PlanData> gate = PlanProduct(MlpProduct::kGate, begin, end);
      if (!gate.ok()) return gate.status();
      if (absl::Status s = Run(*gate, *up); !s.ok()) return s;
    } else if (absl::Status s = Run(*up); !s.ok()) {
      return s;
    }
    if (absl::Status s = Activate(rows); !s.ok()) return s;
    const absl::StatusOr<PlanData> down = PlanProduct(MlpProduct::kDown, begin, end);
    if (!down.ok()) return down.status();
    if (absl::Status s = Run(*down); !s.ok()) return s;
    return Combine(begin, rows);
  }

  absl::StatusOr<PlanData> PlanProduct(MlpProduct product, int64_t begin, int64_t end) const {
    return mlp_.Plan(product, begin, end, options_);
  }

  // part(begin, end) of `count` items of so many bytes, in parts of about kBytesOfPart from multiples of step on.
  template <class Part>
  absl::Status InParts(int64_t count, int64_t bytes, int64_t step, Part part) const {
    const int64_t each = RoundUp(std::max<int64_t>(kBytesOfPart / std::max<int64_t>(bytes, 1), 1), step);
    return ParallelFor(team_, CeilDiv(count, each),
                       [&](int64_t i, int64_t) { part(i * each, std::min(count, (i + 1) * each)); });
  }

  absl::Status Gather(int64_t begin, int64_t rows) const {
    const MoeMlpProblem& problem = mlp_.problem;
    const MlpBuffers& b = mlp_.buffers;
    const int64_t bytes = BytesOf(problem.x.dtype, mlp_.extents.hidden);
    return InParts(rows, bytes, 1, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) {
        const char* token = static_cast<const char*>(problem.x.data) + b.tokens[begin + row] * bytes;
        std::memcpy(b.x + row * bytes, token, static_cast<size_t>(bytes));
      }
    });
  }

  absl::Status Activate(int64_t rows) const {
    const MoeMlpProblem& problem = mlp_.problem;
    const int64_t columns = mlp_.extents.intermediate;
    const DType type = mlp_.TypeOfA();
    raggemm::Activate* const activate = KernelsOf(Ends(), type).activate[static_cast<int>(problem.activation)];
    const float* up = mlp_.buffers.up;
    return InParts(rows, columns * 2 * static_cast<int64_t>(sizeof(float)), 1, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) {
        ActivationArgs args = {.count = columns,
                               .gate = up + row * columns,
                               .up = nullptr,
                               .interleaved = problem.merged == Merged::kInterleaved,
                               .out = mlp_.buffers.a + BytesOf(type, row * columns)};
        if (problem.w_gate) {
          args.up = args.gate;
          args.gate += rows * columns;
        } else if (problem.merged != Merged::kNone) {
          args.gate += row * columns;
          args.up = args.gate + columns;
        }
        activate(args);
      }
    });
  }

  // Columns divide among threads, so that each token's rows are added in their order.
  absl::Status Combine(int64_t begin, int64_t rows) const {
    const MlpBuffers& b = mlp_.buffers;
    const int64_t hidden = mlp_.extents.hidden;
    const auto& weights = mlp_.problem.row_weights;
    constexpr int64_t kLine = 64 / sizeof(float);
    return InParts(hidden, rows * static_cast<int64_t>(sizeof(float)), kLine, [&](int64_t from, int64_t to) {
      Ends().combine({.rows = rows,
                      .columns = to - from,
                      .from = b.d + from,
                      .tokens = b.tokens + begin,
                      .weights = weights ? static_cast<const float*>(weights->data) + begin : nullptr,
                      .sums = b.sums + from,
                      .stride = hidden});
    });
  }

  absl::Status ClearSums() const {
    const int64_t bytes = mlp_.extents.hidden * static_cast<int64_t>(sizeof(float));
    return InParts(mlp_.extents.tokens, bytes, 1, [&](int64_t from, int64_t to) {
      std::memset(mlp_.buffers.sums + from * mlp_.extents.hidden, 0, static_cast<size_t>((to - from) * bytes));
    });
  }

  absl::Status StoreSums() const {
    const Array& out = mlp_.problem.out;
    const int64_t hidden = mlp_.extents.hidden;
    return InParts(mlp_.extents.tokens, hidden * static_cast<int64_t>(sizeof(float)), 1, [&](int64_t from, int64_t to) {
      KernelsOf(Ends(), out.dtype)
          .epilogue({.rows = to - from,
                     .columns = hidden,
                     .total = mlp_.buffers.sums + from * hidden,
                     .total_stride = hidden,
                     .out = static_cast<char*>(out.data) + BytesOf(out.dtype, from * hidden),
                     .out_stride = hidden,
                     .c = nullptr,
                     .alpha = nullptr,
                     .beta = nullptr,
                     .bias = nullptr});
    });
  }

  const KernelRow& Ends() const { return KernelsFor(team_.isa, kArithmetics[static_cast<int>(ArithmeticId::kF32)]); }

  const CheckedMlp& mlp_;
  const Options& options_;
  PlanData team_;
};

}  // namespace

int64_t CheckedMlp::EndOfChunk(int64_t begin) const {
  const int64_t most = std::min(begin + kChunkRows, rows.end);
  int64_t end = begin, row = rows.begin;
  for (int64_t g = 0; g < rows.groups && (row += rows.sizes[g]) <= most; ++g) end = std::max(end, row);
  return end > begin ? end : most;
}

void CheckedMlp::SetSizes(int64_t begin, int64_t end) const {
  int64_t row = rows.begin;
  for (int64_t g = 0; g < rows.groups; ++g) {
    const int64_t next = row + rows.sizes[g];
    buffers.chunk_sizes[g] = std::max<int64_t>(0, std::min(next, end) - std::max(row, begin));
    row = next;
  }
}

absl::StatusOr<PlanData> CheckedMlp::Plan(MlpProduct product, int64_t begin, int64_t end,
                                          const Options& options) const {
  const bool is_down = product == MlpProduct::kDown;
  float* up = product == MlpProduct::kGate ? buffers.up + (end - begin) * extents.intermediate : buffers.up;
  GroupedGemmProblem gemm = Product(product, is_down ? buffers.a : buffers.x, is_down ? buffers.d : up, end - begin);
  const Array sizes = {buffers.chunk_sizes, DType::kS64, {rows.groups}};
  gemm.lhs.first_dims = sizes;
  gemm.out.first_dims = sizes;
  return MakePlanData(gemm, options, product == MlpProduct::kGate ? buffers.of_gate : buffers.of_products);
}

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options, absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckedMlp::Make(problem, workspace);
  return mlp.ok() ? MlpRun(*mlp, options).RunAll() : mlp.status();
}

}  // namespace raggemm
