// Memory that ends at a cliff: reading or writing one byte beyond its end crashes, writing before it shows.
#ifndef RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_
#define RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_

#include <cstddef>

namespace raggemm::test {

// Null where bytes = 0. Not for concurrent construction.
class GuardedBuffer {
 public:
  // Leaves `gap` bytes before the unmapped page, so that buffers of round sizes start at odd places.
  explicit GuardedBuffer(size_t bytes, size_t gap = 0);
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
