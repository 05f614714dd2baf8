// Bytes as hexadecimal digits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kiln {

inline std::string hex(std::string_view bytes) {
  std::string made;
  for (char byte : bytes) {
    made += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
    made += "0123456789abcdef"[byte & 15];
  }
  return made;
}

}  // namespace kiln
