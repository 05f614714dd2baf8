// BLAKE2b (RFC 7693), as Python's hashlib computes it.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

// `length` bytes, at most 64.
std::string blake2b(std::string_view data, size_t length);
std::string hmac_blake2b(std::string_view key, std::string_view data);

}  // namespace kiln
