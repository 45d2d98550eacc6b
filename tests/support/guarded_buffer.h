// Memory that ends, or begins, at a cliff: reading or writing one byte beyond it crashes; writing beyond the other end
// shows.
#ifndef RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_
#define RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_

#include <cstddef>
#include <cstdint>

namespace raggemm::test {

// Where the unmapped page next to a buffer is.
enum class Cliff : uint8_t { kBehind, kBefore };

// Null where bytes = 0. Not for concurrent construction.
class GuardedBuffer {
 public:
  // Leaves `gap` bytes between the buffer and the unmapped page, so that buffers of round sizes start at odd places.
  explicit GuardedBuffer(size_t bytes, size_t gap = 0, Cliff cliff = Cliff::kBehind);
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer();

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Whether the mapped bytes around the buffer are as they were.
  bool SurroundingsIntact() const;

 private:
  size_t bytes_, pages_;
  unsigned char* region_;  // pages_ mapped pages, an unmapped one on each side
  void* data_;
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_
