#include "bench/layer.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "bench/bandwidth.h"
#include "kernels/reference.h"

namespace raggemm::bench {
namespace {

int64_t ElementSize(DType dtype) { return dtype == DType::kBF16 ? 2 : 4; }

char* Allocate(int64_t bytes) {
  constexpr int64_t kLine = 64;
  return static_cast<char*>(std::aligned_alloc(kLine, static_cast<size_t>((bytes + kLine - 1) / kLine * kLine)));
}

}  // namespace

Layer::Layer(const proto::GroupedGemmCase& recorded, DType dtype)
    : dtype_(dtype),
      k_(recorded.k()),
      n_(recorded.n()),
      experts_(recorded.experts()),
      sizes_(recorded.group_sizes().begin(), recorded.group_sizes().end()) {
  for (int32_t size : sizes_) {
    rows_ += size;
    active_experts_ += size != 0;
  }
  lhs_dims_ = {rows_, k_};
  rhs_dims_ = {experts_, k_, n_};
  out_dims_ = {rows_, n_};
  sizes_dims_ = {experts_};
  lhs_.reset(Allocate(rows_ * k_ * ElementSize(dtype)));
  Fill(lhs_.get(), rows_ * k_);
  out_.reset(Allocate(rows_ * n_ * ElementSize(DType::kF32)));
  std::memset(out_.get(), 0, static_cast<size_t>(rows_ * n_ * ElementSize(DType::kF32)));

  const int64_t weight_bytes = active_experts_ * k_ * n_ * ElementSize(dtype);
  const int64_t sets = 1 + kBeyondCaches / std::max<int64_t>(weight_bytes, kBeyondCaches / 8);
  for (int64_t i = 0; i < sets; ++i) weights_.push_back(NewWeights());

  static_cast<Array&>(problem_.lhs) = {lhs_.get(), dtype, lhs_dims_};
  static_cast<Array&>(problem_.rhs) = {weights_[0].get(), dtype, rhs_dims_};
  static_cast<Array&>(problem_.out) = {out_.get(), DType::kF32, out_dims_};
  problem_.lhs.first_dims = problem_.out.first_dims = Array{sizes_.data(), DType::kS32, sizes_dims_};
}

double Layer::bytes() const {
  const int64_t read = (rows_ * k_ + active_experts_ * k_ * n_) * ElementSize(dtype_);
  return static_cast<double>(read + rows_ * n_ * ElementSize(DType::kF32));
}

absl::Status Layer::Verify() {
  if (absl::Status status = Compute(1); !status.ok()) return status;
  std::vector<int64_t> elements = {0, rows_ * n_ - 1};
  std::mt19937_64 random(1);
  while (elements.size() < 64) elements.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows_ * n_)));
  const absl::StatusOr<Reference> reference = ComputeReferenceAt(problem_, elements);
  if (!reference.ok()) return reference.status();
  for (size_t i = 0; i < elements.size(); ++i) {
    const double got = ToDouble(problem_.out, elements[i]), want = reference->want[i];
    if (ErrorInUnitsOfBound(got, want, reference->bound[i], DType::kF32) <= 1) continue;
    return absl::InternalError(absl::StrCat("out[", elements[i], "] is ", got, ", expected ", want));
  }
  return absl::OkStatus();
}

absl::Status Layer::Compute(int threads) {
  problem_.rhs.data = weights_[next_weights_].get();
  next_weights_ = (next_weights_ + 1) % weights_.size();
  Options options;
  options.executor = Executor::kOpenMp;
  options.threads = threads;
  return GroupedGemm(problem_, options);
}

Layer::Memory Layer::NewWeights() const {
  const int64_t expert = k_ * n_;
  Memory weights(Allocate(experts_ * expert * ElementSize(dtype_)));
  for (int64_t e = 0; e < experts_; ++e) {
    if (sizes_[e] != 0) Fill(weights.get() + e * expert * ElementSize(dtype_), expert);
  }
  return weights;
}

// A short random sequence over and over: filling takes no longer than writing memory does.
void Layer::Fill(char* begin, int64_t elements) const {
  constexpr int64_t kSequence = 65521;
  std::vector<char> sequence(kSequence * ElementSize(dtype_));
  const int64_t dims[] = {kSequence};
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> values(-1, 1);
  for (int64_t i = 0; i < kSequence; ++i) StoreRounded({sequence.data(), dtype_, dims}, i, values(random));
  for (int64_t i = 0; i < elements; i += kSequence) {
    const int64_t count = std::min(kSequence, elements - i) * ElementSize(dtype_);
    std::memcpy(begin + i * ElementSize(dtype_), sequence.data(), static_cast<size_t>(count));
  }
}

}  // namespace raggemm::bench
