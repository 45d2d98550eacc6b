// Many calls of mixed sizes at once, on every executor: all results right, and the memory as it was.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/process.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

constexpr int kCallers = 8, kRounds = 10, kDeck = 16;
constexpr double kMiB = 1 << 20;

// One caller's problems, of which some are wrong: errors must cost no memory either.
class Deck {
 public:
  Deck(Random& random, int caller) : random_(random.Next()) {
    static constexpr const char* kExecutors[] = {"AUTO", "SERIAL", "AUTO", "OPENMP"};
    for (int i = 0; i < kDeck; ++i) {
      calls_.push_back(std::make_unique<PluginCall>(RandomSpec(random)));
      host::Attributes& attributes = calls_.back()->call().attributes;
      attributes["executor"] = std::string(kExecutors[i % std::size(kExecutors)]);
      attributes["threads"] = int64_t{(i + caller) % 5};
    }
    bad_ = std::make_unique<PluginCall>(ProblemSpec{.groups = 2, .m = 9, .n = 5, .k = 7, .sizes = {4, 5}});
    static_cast<int32_t*>(bad_->problem().problem.lhs.first_dims->data)[1] = 6;
  }

  // One call. False where its result is wrong.
  bool RunNext(host::TaskRunner* pool) {
    const int64_t card = random_.Below(kDeck + 1);
    if (card == kDeck) return bad_->Run(pool).code == XLA_FFI_Error_Code_INVALID_ARGUMENT && bad_->OutIsUntouched();
    return calls_[card]->Run(pool).ok() && calls_[card]->IsRight();
  }

 private:
  Random random_;
  std::vector<std::unique_ptr<PluginCall>> calls_;
  std::unique_ptr<PluginCall> bad_;
};

// How many results were wrong. Threads are made anew, for what a thread leaves behind is load too.
int64_t Round(std::vector<Deck>& decks, int64_t calls, host::TaskRunner* pool) {
  std::atomic<int64_t> left = calls, wrong = 0;
  std::vector<std::thread> callers;
  for (Deck& deck : decks) {
    callers.emplace_back([&] {
      while (left.fetch_sub(1) > 0) wrong += deck.RunNext(pool) ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  return wrong;
}

int64_t KeptBuffers() {
  char* text = ThePlugin().library.Find<char*()>("raggemm_describe_json")();
  const char* count = std::strstr(std::strstr(text, "kept_buffers"), "count\":");
  const int64_t kept = std::strtoll(count + std::strlen("count\":"), nullptr, 10);
  ThePlugin().free_text(text);
  return kept;
}

TEST(Soak, ResultsAreRightAndMemoryIsFlat) {
  const int64_t calls = Soaking() ? 100'000 : 8'000;
  Random random(TestSeed());
  std::vector<Deck> decks;
  for (int i = 0; i < kCallers; ++i) decks.emplace_back(random, i);
  host::ThreadPool pool(3);
  std::vector<double> resident;
  std::vector<int64_t> kept;
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_EQ(Round(decks, calls / kRounds, &pool), 0) << "round " << round << ", seed " << TestSeed();
    resident.push_back(static_cast<double>(ResidentBytes()) / kMiB);
    kept.push_back(KeptBuffers());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%ld calls from %d threads in %.1f s; resident MiB after each tenth:", static_cast<long>(calls), kCallers,
              took.count());
  for (double mib : resident) std::printf(" %.1f", mib);
  std::printf("\n%ld pack buffers kept\n", static_cast<long>(kept.back()));
  // The first rounds fill the lists that calls take from. How many calls are at work at once is chance, so that later
  // ones may add pack buffers, of 2 MiB each.
  const int64_t added = kept.back() - kept[kRounds / 2 - 1];
  EXPECT_LT(resident.back(), *std::max_element(resident.begin(), resident.begin() + kRounds / 2) + 8.0 + 2.0 * added);
  EXPECT_EQ(host::LiveErrors(), 0);
  EXPECT_GT(kept.back(), 0);
  EXPECT_LE(kept.back(), 64);
}

}  // namespace
}  // namespace raggemm::test
