#include "runtime/digest.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace kiln {

namespace {

constexpr size_t kBlock = 128;
constexpr std::array<uint64_t, 8> kStart = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};
constexpr uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

uint64_t rotated(uint64_t word, int by) { return word >> by | word << (64 - by); }

void mix(uint64_t* v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] = v[a] + v[b] + x;
  v[d] = rotated(v[d] ^ v[a], 32);
  v[c] = v[c] + v[d];
  v[b] = rotated(v[b] ^ v[c], 24);
  v[a] = v[a] + v[b] + y;
  v[d] = rotated(v[d] ^ v[a], 16);
  v[c] = v[c] + v[d];
  v[b] = rotated(v[b] ^ v[c], 63);
}

void compress(std::array<uint64_t, 8>& state, const char* block, uint64_t count, bool last) {
  uint64_t v[16], m[16];
  std::memcpy(m, block, kBlock);
  for (int n = 0; n < 8; n++) v[n] = state[n], v[n + 8] = kStart[n];
  v[12] ^= count;
  if (last) v[14] = ~v[14];
  for (int round = 0; round < 12; round++) {
    const uint8_t* s = kOrder[round % 10];
    for (int n = 0; n < 4; n++) mix(v, n, n + 4, n + 8, n + 12, m[s[2 * n]], m[s[2 * n + 1]]);
    for (int n = 0; n < 4; n++) {
      mix(v, n, (n + 1) % 4 + 4, (n + 2) % 4 + 8, (n + 3) % 4 + 12, m[s[2 * n + 8]],
          m[s[2 * n + 9]]);
    }
  }
  for (int n = 0; n < 8; n++) state[n] ^= v[n] ^ v[n + 8];
}

}  // namespace

std::string blake2b(std::string_view data, size_t length) {
  std::array<uint64_t, 8> state = kStart;
  state[0] ^= 0x01010000 ^ length;
  size_t done = 0;
  for (; data.size() - done > kBlock; done += kBlock) {
    compress(state, data.data() + done, done + kBlock, false);
  }
  char rest[kBlock] = {};
  if (data.size() > done) std::memcpy(rest, data.data() + done, data.size() - done);
  compress(state, rest, data.size(), true);
  return std::string(reinterpret_cast<const char*>(state.data()), length);
}

std::string hmac_blake2b(std::string_view key, std::string_view data) {
  std::string padded(key.size() > kBlock ? blake2b(key, 64) : std::string(key));
  padded.resize(kBlock);
  std::string inner = padded, outer = padded;
  for (char& letter : inner) letter ^= 0x36;
  for (char& letter : outer) letter ^= 0x5c;
  return blake2b(outer + blake2b(inner + std::string(data), 64), 64);
}

}  // namespace kiln
