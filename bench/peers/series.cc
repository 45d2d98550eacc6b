#include "bench/peers/series.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace raggemm::bench {

Product ProductOf(const GemmSeries& series, size_t group) {
  const int64_t rows = series.rows[group], k = series.k, n = series.n;
  const void *lhs = series.lhs[group], *rhs = series.rhs[group];
  void* out = series.out[group];
  switch (series.mode) {
    case Mode::kForward:
      return {false, false, rows, n, k, k, n, n, lhs, rhs, out};
    case Mode::kForwardTransposed:
      return {false, true, rows, n, k, k, k, n, lhs, rhs, out};
    case Mode::kWgrad:
      break;
  }
  return {true, false, k, n, rows, k, n, n, lhs, rhs, out};
}

std::vector<size_t> LargestFirst(const GemmSeries& series) {
  std::vector<size_t> groups(series.rows.size());
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(), [&](size_t a, size_t b) { return series.rows[a] > series.rows[b]; });
  return groups;
}

int LibraryThreads(PeerThreads threading, int threads) { return threading == PeerThreads::kOwn ? threads : 1; }

OpenMpThreads::OpenMpThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
OpenMpThreads::~OpenMpThreads() { omp_set_num_threads(before_); }

// Outer threads are OpenMP threads. So no other pool spins, and libraries see that they run in a parallel region.
absl::Status ForEachGroup(const GemmSeries& series, PeerThreads threading, int threads,
                          absl::FunctionRef<absl::Status(size_t group, int thread)> multiply) {
  if (threading == PeerThreads::kOwn) {
    for (size_t group = 0; group < series.rows.size(); ++group) {
      if (absl::Status status = multiply(group, 0); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  const std::vector<size_t> groups = LargestFirst(series);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  absl::Status first_error;
  const auto fail = [&](const absl::Status& status) {
    const std::lock_guard lock(mutex);
    first_error.Update(status);
    next = groups.size();
  };
#pragma omp parallel num_threads(threads)
  {
    if (omp_get_num_threads() != threads) {
      fail(absl::InternalError(absl::StrCat(omp_get_num_threads(), " outer threads, expected ", threads)));
    }
    for (size_t i = next++; i < groups.size(); i = next++) {
      if (absl::Status status = multiply(groups[i], omp_get_thread_num()); !status.ok()) fail(status);
    }
  }
  return first_error;
}

}  // namespace raggemm::bench
