// Checks whose messages go through no C++ stream: a second copy of the C++ library in the process
// may not have set up its locale, and formatting a number with it would end the process.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <string>
#include <type_traits>

namespace kiln {

inline std::string part_text(const std::string& text) { return text; }
inline std::string part_text(const char* text) { return text; }
inline std::string part_text(c10::IntArrayRef numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); i++) {
    text += (i ? ", " : "") + std::to_string(numbers[i]);
  }
  return text + "]";
}
template <typename Number, typename = std::enable_if_t<std::is_integral_v<Number>>>
std::string part_text(Number number) {
  return std::to_string(number);
}

template <typename... Parts>
std::string joined(const Parts&... parts) {
  return (part_text(parts) + ... + std::string());
}

}  // namespace kiln

// Throws c10::Error, which Python sees as a RuntimeError, with the joined parts.
#define KILN_CHECK(condition, ...) TORCH_CHECK(condition, ::kiln::joined(__VA_ARGS__))
