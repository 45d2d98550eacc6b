// Memory full of numbers, out of which the operands of all cases are cut.
#ifndef RAGGEMM_BENCH_ARENA_H_
#define RAGGEMM_BENCH_ARENA_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "raggemm/types.h"

namespace raggemm::bench {

// More than the caches of any CPU that this has been run on.
inline constexpr int64_t kBeyondCaches = int64_t{512} << 20;

// Numbers within [-1,1], the same for any size, so that a case finds the same ones wherever its operands lie. Pages of
// the ordinary size, as operands have outside of here. Values are rounded to `precision` and stored as `dtype`: an f32
// arena in the precision of bf16 is the widened bf16 arena.
class Arena {
 public:
  Arena(int64_t bytes, DType dtype, DType precision);

  char* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  int64_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_ARENA_H_
