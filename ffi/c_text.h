// Texts for callers in C.
#ifndef RAGGEMM_FFI_C_TEXT_H_
#define RAGGEMM_FFI_C_TEXT_H_

#include <cstring>
#include <exception>

namespace raggemm {

// What make_text returns, or the text of what it throws, as the caller's own, to be freed with raggemm_free; null where
// there is no memory for it.
template <typename MakeText>
char* TextOrException(MakeText make_text) {
  try {
    return strdup(make_text().c_str());
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("raggemm: unknown exception");
  }
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_C_TEXT_H_
