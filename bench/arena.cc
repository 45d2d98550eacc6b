#include "bench/arena.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "kernels/element.h"
#include "kernels/problem.h"

namespace raggemm::bench {
namespace {

constexpr int64_t kPage = 4096;

// A prime number of elements: no two matrices of a case start alike.
std::vector<char> Sequence(DType dtype, DType precision) {
  constexpr int64_t kElements = 65521;
  std::vector<char> sequence(kElements * SizeOf(dtype));
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> values(-1, 1);
  for (int64_t i = 0; i < kElements; ++i) {
    StoreRounded({sequence.data(), dtype, {kElements}}, i, RoundTo(precision, values(random)));
  }
  return sequence;
}

}  // namespace

Arena::Arena(int64_t bytes, DType dtype, DType precision)
    : bytes_((bytes + kPage - 1) / kPage * kPage),
      memory_(static_cast<char*>(std::aligned_alloc(kPage, static_cast<size_t>(bytes_)))) {
  if (memory_ == nullptr) throw std::bad_alloc();
  const std::vector<char> sequence = Sequence(dtype, precision);
  const int64_t period = static_cast<int64_t>(sequence.size());
  for (int64_t at = 0; at < bytes_; at += period) {
    std::memcpy(memory_.get() + at, sequence.data(), static_cast<size_t>(std::min(period, bytes_ - at)));
  }
}

}  // namespace raggemm::bench
