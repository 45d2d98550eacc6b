// Finds the matrices that a call multiplies, without the library's checks and plans.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/oracle/reference.h"
#include "tests/oracle/values.h"

namespace raggemm {
namespace {

// The size of each group, and its start in the replica.
struct GroupSizes {
  std::vector<int64_t> size, start;
};

GroupSizes ReadSizes(const RaggedDims& dims) {
  GroupSizes sizes;
  if (!dims.has_value()) return sizes;
  const int64_t groups = dims->dims.back();
  for (int64_t i = 0; i < ElementCount(*dims); ++i) {
    sizes.start.push_back(i % groups == 0 ? 0 : sizes.start.back() + sizes.size.back());
    sizes.size.push_back(static_cast<int64_t>(ToDouble(*dims, i)));
  }
  return sizes;
}

struct Batch {
  RaggedMode mode = RaggedMode::kUniform;
  int64_t problems = 1, replicas = 1, groups = 0, local_groups = 0;
};

// The indices of a processed group. `group` counts all groups, and `local` only the processed ones.
struct GroupIndex {
  int64_t problem, replica, group, local;
};

// An operand as a stack of blocks: matrices of equal shape. Groups may divide the rows or the columns of a block.
class Operand {
 public:
  // `cols` is the number of columns of out. Only an rhs in blocks of columns needs it.
  Operand(const BufferDescriptor& buffer, const Batch& batch, int64_t cols = 0, const Array* row_index = nullptr)
      : buffer_(buffer),
        batch_(batch),
        row_index_(row_index),
        first_(ReadSizes(buffer.first_dims)),
        last_(ReadSizes(buffer.last_dims)) {
    const int64_t rank = static_cast<int64_t>(buffer.dims.size());
    const int64_t boundary = buffer.axis_boundary < 0 ? buffer.axis_boundary + rank : buffer.axis_boundary;
    for (int64_t axis = 0; axis < rank; ++axis) (axis < boundary ? rows_ : cols_) *= buffer.dims[axis];
    if (IsBlocked(buffer.layout)) cols_ = cols, rows_ = buffer.dims[0] * buffer.dims[2];
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  MatrixView InBlock(int64_t block, int64_t blocks, const GroupIndex& at) const {
    const int64_t height = rows_ / blocks;
    if (IsBlocked(buffer_.layout)) {
      const int64_t width = buffer_.dims[3];
      return {block * height * buffer_.dims[1] * width, height, cols_, width, 1, width, (height - 1) * width};
    }
    const int64_t size_index = (at.problem * batch_.replicas + at.replica) * batch_.groups + at.group;
    MatrixView view = {block * height * cols_, height, cols_, cols_, 1};
    if (buffer_.first_dims.has_value()) {
      if (row_index_ != nullptr) {
        view.row_index = row_index_;
        view.first_index = block * (ElementCount(*row_index_) / blocks) + first_.start[size_index];
      } else {
        view.start += first_.start[size_index] * cols_;
      }
      view.rows = first_.size[size_index];
    }
    if (buffer_.last_dims.has_value()) {
      const bool packed = buffer_.layout == Layout::kPacked;
      view.start += last_.start[size_index] * (packed ? height : 1);
      view.cols = last_.size[size_index];
      if (packed) view.row_step = view.cols;
    }
    return Transposed(view);
  }

  // Returns the matrix of a group with all ragged. Each problem has an equal share of the buffer, and its dense
  // matrices follow each other from the start of this share.
  MatrixView Packed(const GroupIndex& at) const {
    const int64_t begin = at.problem * batch_.groups;
    int64_t start = at.problem * (ElementCount(buffer_) / batch_.problems);
    for (int64_t g = begin; g < begin + at.group; ++g) start += first_.size[g] * last_.size[g];
    const int64_t cols = last_.size[begin + at.group];
    return Transposed({start, first_.size[begin + at.group], cols, cols, 1});
  }

 private:
  MatrixView Transposed(const MatrixView& v) const {
    return buffer_.is_trans ? MatrixView{v.start, v.cols, v.rows, v.col_step, v.row_step} : v;
  }

  const BufferDescriptor& buffer_;
  const Batch& batch_;
  const Array* row_index_;  // Stored row of each row of lhs. Null: in order.
  GroupSizes first_, last_;
  int64_t rows_ = 1, cols_ = 1;
};

absl::StatusOr<RaggedMode> ModeOf(const GroupedGemmProblem& problem) {
  const auto set = [](const BufferDescriptor& x) { return x.first_dims.has_value() + 2 * x.last_dims.has_value(); };
  const int lhs = set(problem.lhs), rhs = set(problem.rhs), out = set(problem.out);
  const auto one = [](int arrays) { return arrays == 1 || arrays == 2; };
  if (lhs == 0 && rhs == 0 && out == 0) return RaggedMode::kUniform;
  if (lhs == 3 && rhs == 3 && out == 3) return RaggedMode::kAllRagged;
  if (one(lhs) && rhs == 0 && out == 1) return RaggedMode::kRaggedM;
  if (one(lhs) && one(rhs) && out == 0) return RaggedMode::kRaggedK;
  if (lhs == 0 && one(rhs) && out == 2) return RaggedMode::kRaggedN;
  return absl::InvalidArgumentError(absl::StrCat("no mode has these dims arrays (1: first, 2: last, 3: both): lhs ",
                                                 lhs, ", rhs ", rhs, ", out ", out));
}

absl::StatusOr<Batch> BatchOf(const GroupedGemmProblem& problem) {
  absl::StatusOr<RaggedMode> mode = ModeOf(problem);
  if (!mode.ok()) return mode.status();
  Batch batch = {.mode = *mode};
  if (*mode == RaggedMode::kUniform) {
    batch.groups = problem.out.dims[0];
  } else {
    const RaggedDims& sizes = *mode == RaggedMode::kRaggedN        ? problem.out.last_dims
                              : problem.lhs.first_dims.has_value() ? problem.lhs.first_dims
                                                                   : problem.lhs.last_dims;
    if (sizes->dims.size() == 3) batch.problems = sizes->dims[0], batch.replicas = sizes->dims[1];
    batch.groups = sizes->dims.back();
  }
  batch.local_groups = batch.groups;
  if (batch.problems == 0) return batch;
  if (*mode == RaggedMode::kRaggedM) batch.local_groups = problem.rhs.dims[0] / batch.problems;
  if (*mode == RaggedMode::kRaggedK) batch.local_groups = problem.out.dims[0] / batch.problems;
  return batch;
}

struct Operands {
  const Batch& batch;
  Operand lhs, out, rhs;
  bool lhs_has_group_axis;  // True: lhs has a matrix for each group. Used with ragged N only.

  Operands(const GroupedGemmProblem& problem, const Batch& batch)
      : batch(batch),
        lhs(problem.lhs, batch, 0, problem.row_index ? &*problem.row_index : nullptr),
        out(problem.out, batch),
        rhs(problem.rhs, batch, out.cols()) {
    const int64_t problems = std::max<int64_t>(batch.problems, 1);
    const int64_t k = problem.rhs.last_dims.has_value() ? rhs.rows() / problems : rhs.cols();
    lhs_has_group_axis = lhs.rows() * lhs.cols() != out.rows() * k;
  }

  GroupProduct::Term TermOf(const GroupIndex& at) const {
    switch (batch.mode) {
      case RaggedMode::kRaggedM:
        return {OfSegment(lhs, at), OfGroup(rhs, at)};
      case RaggedMode::kRaggedK:
        return {OfSegment(lhs, at), OfSegment(rhs, at)};
      case RaggedMode::kRaggedN:
        return {lhs_has_group_axis ? OfGroup(lhs, at) : OfSegment(lhs, at),
                rhs.InBlock(at.problem, batch.problems, at)};
      case RaggedMode::kUniform:
        return {OfGroup(lhs, at), OfGroup(rhs, at)};
      case RaggedMode::kAllRagged:
        break;
    }
    return {lhs.Packed(at), rhs.Packed(at)};
  }

  MatrixView OutOf(const GroupIndex& at) const {
    if (batch.mode == RaggedMode::kAllRagged) return out.Packed(at);
    const bool has_group_axis = batch.mode == RaggedMode::kRaggedK || batch.mode == RaggedMode::kUniform;
    return has_group_axis ? OfGroup(out, at) : OfSegment(out, at);
  }

 private:
  MatrixView OfSegment(const Operand& x, const GroupIndex& at) const {
    return x.InBlock(at.problem * batch.replicas + at.replica, batch.problems * batch.replicas, at);
  }

  MatrixView OfGroup(const Operand& x, const GroupIndex& at) const {
    return x.InBlock(at.problem * batch.local_groups + at.local, batch.problems * batch.local_groups, at);
  }
};

// Returns a group's row in alpha, beta, bias, scales or zero points. Such an array has one row, one per processed
// group, or one per processed group and replica.
int64_t ParameterRow(int64_t rows, const Batch& batch, const GroupIndex& at) {
  if (rows == 1) return 0;
  const bool shared = rows == batch.problems * batch.local_groups;
  const int64_t segment = shared ? at.problem : at.problem * batch.replicas + at.replica;
  return segment * batch.local_groups + at.local;
}

int64_t GroupOffset(const GroupedGemmProblem& problem, const Batch& batch, int64_t p, int64_t r) {
  // In the mode uniform, all values of group_offset are 0, and the array may have any shape.
  if (!problem.group_offset.has_value() || batch.mode == RaggedMode::kUniform) return 0;
  const bool single = ElementCount(*problem.group_offset) == 1;
  return static_cast<int64_t>(ToDouble(*problem.group_offset, single ? 0 : p * batch.replicas + r));
}

// Returns the product of one group. With ragged K it sums over the replicas, starting at at.replica.
GroupProduct ProductOf(const GroupedGemmProblem& problem, const Operands& operands, GroupIndex at) {
  const Batch& batch = operands.batch;
  GroupProduct product = {.out = operands.OutOf(at), .terms = {operands.TermOf(at)}};
  if (problem.alpha.has_value()) product.alpha = ParameterRow(ElementCount(*problem.alpha), batch, at);
  if (problem.beta.has_value()) product.beta = ParameterRow(ElementCount(*problem.beta), batch, at);
  if (problem.bias.has_value()) product.bias = ParameterRow(problem.bias->dims[0], batch, at) * product.out.cols;
  for (const auto& [values, row] : {std::pair{&problem.lhs_scale, &product.lhs_scale},
                                    {&problem.rhs_scale, &product.rhs_scale},
                                    {&problem.lhs_zero, &product.lhs_zero},
                                    {&problem.rhs_zero, &product.rhs_zero}}) {
    if (*values && (*values)->dims.size() == 1) *row = ParameterRow((*values)->dims[0], batch, at);
  }
  if (batch.mode == RaggedMode::kRaggedK) {
    while (++at.replica < batch.replicas) product.terms.push_back(operands.TermOf(at));
  }
  return product;
}

}  // namespace

absl::StatusOr<std::vector<GroupProduct>> GroupProducts(const GroupedGemmProblem& problem) {
  absl::StatusOr<Batch> batch = BatchOf(problem);
  if (!batch.ok()) return batch.status();
  const Operands operands(problem, *batch);
  const int64_t replicas =
      batch->mode == RaggedMode::kRaggedK ? std::min<int64_t>(batch->replicas, 1) : batch->replicas;
  std::vector<GroupProduct> products;
  for (int64_t p = 0; p < batch->problems; ++p) {
    for (int64_t r = 0; r < replicas; ++r) {
      const int64_t offset = GroupOffset(problem, *batch, p, r);
      for (int64_t local = 0; local < batch->local_groups; ++local) {
        products.push_back(ProductOf(problem, operands, {p, r, offset + local, local}));
      }
    }
  }
  return products;
}

}  // namespace raggemm
