// Every competitor gives right results, in every mode and way, on as many threads as it is told to use.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/peers/peer.h"
#include "tests/oracle/values.h"

namespace raggemm::bench {
namespace {

const char* const kPeers[] = {"onednn",
                              "onednn-sgemm",
                              "onednn3",
                              "onednn3-sgemm",
                              "onednn3-quantized",
                              "openblas",
                              "openblas-wheel",
                              "openblas-wheel-batch",
                              "blis",
                              "blis-avx2",
                              "mkl",
                              "mkl-batch"};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr Mode kModes[] = {Mode::kForward, Mode::kForwardTransposed, Mode::kWgrad};

// A matrix with its own memory, and one element more that nobody may write.
class Matrix {
 public:
  Matrix(DType dtype, int64_t elements)
      : dtype_(dtype), elements_(elements), memory_(static_cast<size_t>(elements + 1) * SizeOf(dtype)) {}

  void Fill(double value) {
    for (int64_t i = 0; i <= elements_; ++i) Set(i, value);
  }
  void FillRandom(std::mt19937& random) {
    std::uniform_real_distribution<double> values(-1, 1);
    for (int64_t i = 0; i < elements_; ++i) Set(i, values(random));
  }
  double At(int64_t i) const { return ToDouble({const_cast<uint8_t*>(memory_.data()), dtype_, dims_}, i); }
  std::vector<double> All() const {
    std::vector<double> values;
    for (int64_t i = 0; i < elements_; ++i) values.push_back(At(i));
    return values;
  }
  void Set(int64_t i, double value) { StoreRounded({memory_.data(), dtype_, dims_}, i, value); }
  void* data() { return memory_.data(); }
  int64_t elements() const { return elements_; }

 private:
  DType dtype_;
  int64_t elements_;
  int64_t dims_[1] = {elements_ + 1};
  std::vector<uint8_t> memory_;
};

// Operands and result of a series, groups of those numbers of rows.
class Buffers {
 public:
  Buffers(GemmSeries types, int64_t k, int64_t n, std::vector<int64_t> rows) : rows_(std::move(rows)) {
    series_ = types;
    series_.k = k;
    series_.n = n;
    std::mt19937 random(1);
    const bool wgrad = types.mode == Mode::kWgrad;
    for (int64_t m : rows_) {
      lhs_.emplace_back(types.lhs_dtype, m * k).FillRandom(random);
      rhs_.emplace_back(types.rhs_dtype, (wgrad ? m : k) * n).FillRandom(random);
      out_.emplace_back(types.out_dtype, (wgrad ? k : m) * n).Fill(std::numeric_limits<double>::quiet_NaN());
    }
    for (Matrix& matrix : lhs_) lhs_data_.push_back(matrix.data());
    for (Matrix& matrix : rhs_) rhs_data_.push_back(matrix.data());
    for (Matrix& matrix : out_) out_data_.push_back(matrix.data());
    series_.rows = rows_;
    series_.lhs = lhs_data_;
    series_.rhs = rhs_data_;
    series_.out = out_data_;
  }
  Buffers(const Buffers&) = delete;

  const GemmSeries& series() const { return series_; }
  void ClearOut() {
    for (Matrix& out : out_) out.Fill(std::numeric_limits<double>::quiet_NaN());
  }

  // Against a double loop, which runs before the first check; any order of summation is right.
  void Check() {
    for (size_t g = expected_.size(); g < rows_.size(); ++g) expected_.push_back(Expected(g));
    for (size_t g = 0; g < rows_.size(); ++g) {
      for (int64_t i = 0; i < out_[g].elements(); ++i) {
        const double got = out_[g].At(i);
        EXPECT_LE(std::abs(got - expected_[g][i].value), expected_[g][i].bound)
            << "group " << g << " of " << rows_[g] << " rows, [" << i / series_.n << ", " << i % series_.n << "]";
        EXPECT_FALSE(std::isnan(got));
      }
      EXPECT_TRUE(std::isnan(out_[g].At(out_[g].elements()))) << "written behind the result of group " << g;
      if (testing::Test::HasFailure()) return;
    }
  }

 private:
  struct Element {
    double value, bound;
  };

  std::vector<Element> Expected(size_t g) const {
    const int64_t k = series_.k, n = series_.n, terms = series_.mode == Mode::kWgrad ? rows_[g] : k;
    const std::vector<double> lhs = lhs_[g].All(), rhs = rhs_[g].All();
    std::vector<Element> expected;
    for (int64_t at = 0; at < out_[g].elements(); ++at) {
      const int64_t i = at / n, j = at % n;
      double want = 0, size = 0;
      for (int64_t t = 0; t < terms; ++t) {
        const double a = lhs[series_.mode == Mode::kWgrad ? t * k + i : i * k + t];
        const double b = rhs[series_.mode == Mode::kForwardTransposed ? j * k + t : t * n + j];
        want += a * b;
        size += std::abs(a * b);
      }
      expected.push_back({want, FormatOf(DType::kF32).Epsilon() * static_cast<double>(terms + 4) * size +
                                    FormatOf(series_.out_dtype).Epsilon() * std::abs(want)});
    }
    return expected;
  }

  GemmSeries series_;
  std::vector<int64_t> rows_;
  std::vector<Matrix> lhs_, rhs_, out_;
  std::vector<std::vector<Element>> expected_;
  std::vector<const void*> lhs_data_, rhs_data_;
  std::vector<void*> out_data_;
};

std::vector<PeerThreads> Ways(const Peer& peer) {
  if (peer.one_call) return {PeerThreads::kOwn};
  return {PeerThreads::kOwn, PeerThreads::kOuter};
}

// Seconds of CPU time that each thread of this process has used.
std::map<int, double> ThreadSeconds() {
  std::map<int, double> seconds;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    const int thread = std::atoi(entry->d_name);
    // The kernel's name for the clock of a thread's CPU time; see clock_getcpuclockid for that of a process.
    const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3U) | 6U);
    timespec time;
    if (thread != 0 && clock_gettime(clock, &time) == 0) {
      seconds[thread] = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }
  }
  closedir(tasks);
  return seconds;
}

// Computes with every competitor that is there; PeerListTest names the others.
class PeersTest : public testing::TestWithParam<const Peer*> {
 protected:
  const Peer* peer_ = GetParam();
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PeersTest);

std::vector<const Peer*> FoundPeers() {
  std::vector<const Peer*> found;
  for (const Peer& peer : LoadPeers()) {
    if (!peer.quantized) found.push_back(&peer);  // quantized_test has the others
  }
  return found;
}

std::vector<GemmSeries> AllTypes() {
  std::vector<GemmSeries> all;
  for (Mode mode : kModes) {
    for (DType in : kTypes) {
      for (DType out : kTypes) {
        GemmSeries& types = all.emplace_back();
        types.mode = mode;
        types.lhs_dtype = types.rhs_dtype = in;
        types.out_dtype = out;
      }
    }
  }
  return all;
}

void CheckEveryWay(const Peer& peer, Buffers& buffers) {
  for (PeerThreads way : Ways(peer)) {
    for (int threads : {2, 1, 2}) {
      SCOPED_TRACE(absl::StrCat(way == PeerThreads::kOwn ? "own " : "outer ", threads, " threads"));
      buffers.ClearOut();
      const absl::Status status = peer.run(buffers.series(), way, threads);
      ASSERT_TRUE(status.ok()) << status;
      buffers.Check();
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_P(PeersTest, GivesRightResults) {
  for (const GemmSeries& types : AllTypes()) {
    if (!peer_->supports(types)) {
      EXPECT_FALSE(types.lhs_dtype == DType::kF32 && types.out_dtype == DType::kF32);
      continue;
    }
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>(1, 1), {33, 17}, {301, 130}}) {
      SCOPED_TRACE(absl::StrCat("mode ", static_cast<int>(types.mode), ", types ", static_cast<int>(types.lhs_dtype),
                                " to ", static_cast<int>(types.out_dtype), ", k ", k, ", n ", n));
      Buffers buffers(types, k, n, {1, 7, 130, 2, 7, 65, 1});
      CheckEveryWay(*peer_, buffers);
      if (HasFailure()) return;
    }
  }
}

// By the CPU time of each thread: what a library says of itself could be wrong.
TEST_P(PeersTest, UsesTheThreadsItIsGiven) {
  constexpr int64_t kSize = 768;
  constexpr double kSeconds = 0.1;
  Buffers buffers({}, kSize, kSize, {kSize, kSize, kSize, kSize});
  const int before = omp_get_max_threads();
  for (PeerThreads way : Ways(*peer_)) {
    for (int threads : {1, 2, 1}) {
      SCOPED_TRACE(absl::StrCat(way == PeerThreads::kOwn ? "own " : "outer ", threads, " threads"));
      ASSERT_TRUE(peer_->run(buffers.series(), way, threads).ok());
      // Threads that wait for work spin for a while.
      struct timespec pause = {0, 100'000'000};
      nanosleep(&pause, nullptr);
      const std::map<int, double> start = ThreadSeconds();
      std::map<int, double> used;
      double longest = 0;
      while (longest < kSeconds) {
        ASSERT_TRUE(peer_->run(buffers.series(), way, threads).ok());
        used = ThreadSeconds();
        for (auto& [thread, seconds] : used) {
          if (const auto found = start.find(thread); found != start.end()) seconds -= found->second;
          longest = std::max(longest, seconds);
        }
      }
      int working = 0;
      for (const auto& [thread, seconds] : used) working += seconds > 0.2 * longest;
      EXPECT_EQ(working, threads);
      EXPECT_EQ(omp_get_max_threads(), before);
    }
  }
}

TEST_P(PeersTest, DescribesItself) {
  const std::string description = peer_->describe();
  EXPECT_THAT(description, testing::HasSubstr(".so"));
  EXPECT_THAT(description, testing::Not(testing::HasSubstr("\n")));
}

TEST_P(PeersTest, OneCallHasNoOuterThreads) {
  Buffers buffers({}, 3, 3, {2});
  EXPECT_EQ(peer_->run(buffers.series(), PeerThreads::kOuter, 2).code(),
            peer_->one_call ? absl::StatusCode::kUnimplemented : absl::StatusCode::kOk);
}

INSTANTIATE_TEST_SUITE_P(peers, PeersTest, testing::ValuesIn(FoundPeers()), [](const auto& info) {
  std::string name = info.param->name;
  for (char& letter : name) {
    if (letter == '-') letter = '_';
  }
  return name;
});

TEST(PeerListTest, HasEachCompetitorOnce) {
  std::vector<std::string> names;
  for (const Peer& peer : LoadPeers()) names.emplace_back(peer.name);
  for (const AbsentPeer& peer : AbsentPeers()) {
    names.emplace_back(peer.name);
    EXPECT_NE(peer.reason, "");
    std::printf("NOT covered: competitor %s, %s\n", peer.name, peer.reason.c_str());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(kPeers));
}

}  // namespace
}  // namespace raggemm::bench
