#include "runtime/package_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/errors.h"

namespace kiln {

namespace {

constexpr int64_t kEndSize = 22, kEntrySize = 46, kLocalSize = 30, kLongestComment = 65535;

// A little-endian number.
uint64_t number(const std::string& from, size_t at, size_t bytes) {
  if (at + bytes > from.size()) damaged("its directory is cut short");
  uint64_t made = 0;
  for (size_t n = bytes; n-- > 0;) made = made << 8 | static_cast<uint8_t>(from[at + n]);
  return made;
}

void check_owner(const struct stat& facts) {
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    untrusted("nobody vouches for it, and it belongs to user " + std::to_string(facts.st_uid));
  }
  if (facts.st_mode & (S_IWGRP | S_IWOTH))
    untrusted("nobody vouches for it, and others may write it");
}

}  // namespace

File::~File() {
  if (number_ >= 0) close(number_);
}

Mapping::Mapping(int file, int64_t start, int64_t length) : length_(length) {
  int64_t page = start - start % sysconf(_SC_PAGESIZE);
  mapped_ = start - page + length;
  if (!length) return;
  memory_ =
      mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, page);
  if (memory_ == MAP_FAILED) damaged("it cannot be mapped");
  start_ = static_cast<char*>(memory_) + (start - page);
}

Mapping::~Mapping() {
  if (start_) munmap(memory_, static_cast<size_t>(mapped_));
}

// The checksum of zip files: polynomial 0xEDB88320, four bits at a time.
static uint32_t crc32(const std::string& data) {
  uint32_t table[16];
  for (uint32_t n = 0; n < 16; n++) {
    table[n] = n;
    for (int bit = 0; bit < 4; bit++) table[n] = table[n] >> 1 ^ (table[n] & 1) * 0xEDB88320;
  }
  uint32_t rest = ~uint32_t{0};
  for (unsigned char byte : data) {
    rest ^= byte;
    rest = rest >> 4 ^ table[rest & 15];
    rest = rest >> 4 ^ table[rest & 15];
  }
  return ~rest;
}

PackageFile::PackageFile(const std::string& path, bool trusted)
    : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (file_.number() < 0) throw PackageError("KILN6103  " + path + ": " + std::strerror(errno));
  struct stat facts;
  if (fstat(file_.number(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    damaged("it is not a regular file");
  }
  if (!trusted) check_owner(facts);
  read_directory(facts.st_size);
}

std::string PackageFile::bytes(int64_t start, int64_t length) const {
  if (start < 0 || length < 0) damaged("its directory is damaged");
  std::string made(static_cast<size_t>(length), '\0');
  for (int64_t done = 0; done < length;) {
    ssize_t got =
        pread(file_.number(), made.data() + done, static_cast<size_t>(length - done), start + done);
    if (got <= 0) damaged("it is cut short");
    done += got;
  }
  return made;
}

void PackageFile::read_directory(int64_t size) {
  int64_t tail = std::min(size, kEndSize + kLongestComment);
  std::string end = bytes(size - tail, tail);
  size_t at = end.rfind("PK\5\6");
  if (at == std::string::npos) damaged("it is not a zip file");
  uint64_t count = number(end, at + 10, 2), length = number(end, at + 12, 4);
  uint64_t start = number(end, at + 16, 4);
  if (start == 0xFFFFFFFF || count == 0xFFFF) {  // larger than 4 GB
    if (at < 20) damaged("its directory is damaged");
    std::string locator = end.substr(at - 20, 20);
    if (locator.rfind("PK\6\7", 0) != 0) damaged("its directory is damaged");
    std::string record = bytes(static_cast<int64_t>(number(locator, 8, 8)), 56);
    count = number(record, 32, 8), length = number(record, 40, 8), start = number(record, 48, 8);
  }
  if (start > static_cast<uint64_t>(size) || length > static_cast<uint64_t>(size) - start) {
    damaged("its directory is damaged");
  }
  std::string directory = bytes(static_cast<int64_t>(start), static_cast<int64_t>(length));
  size_t next = 0;
  for (uint64_t n = 0; n < count; n++) {
    if (directory.compare(next, 4, "PK\1\2") != 0) damaged("its directory is damaged");
    uint64_t flags = number(directory, next + 8, 2), method = number(directory, next + 10, 2);
    uint64_t packed = number(directory, next + 20, 4), plain = number(directory, next + 24, 4);
    size_t name_size = number(directory, next + 28, 2), extra = number(directory, next + 30, 2);
    size_t comment = number(directory, next + 32, 2);
    uint64_t local = number(directory, next + 42, 4);
    std::string name = directory.substr(next + kEntrySize, name_size);
    size_t field = next + kEntrySize + name_size, last = field + extra;
    while (field + 4 <= last) {  // sizes that need 64 bits
      size_t tag = number(directory, field, 2), bytes = number(directory, field + 2, 2);
      size_t value = field + 4;
      for (uint64_t* wide : {&plain, &packed, &local}) {
        if (tag == 1 && *wide == 0xFFFFFFFF) *wide = number(directory, value, 8), value += 8;
      }
      field += 4 + bytes;
    }
    if (method != 0 || packed != plain || (flags & 1) || has(name)) {
      damaged("a member is compressed, encrypted or there twice");
    }
    if (local > static_cast<uint64_t>(size) - kLocalSize) damaged("a member lies elsewhere");
    std::string header = bytes(static_cast<int64_t>(local), kLocalSize);
    if (header.compare(0, 4, "PK\3\4") != 0) damaged("a member lies elsewhere");
    uint64_t begin = local + kLocalSize + number(header, 26, 2) + number(header, 28, 2);
    if (begin > static_cast<uint64_t>(size) || plain > static_cast<uint64_t>(size) - begin) {
      damaged("a member is longer than the file");
    }
    auto checksum = static_cast<uint32_t>(number(directory, next + 16, 4));
    places_[name] = {static_cast<int64_t>(begin), static_cast<int64_t>(plain), checksum};
    next = last + comment;
  }
}

const PackageFile::Place& PackageFile::place(const std::string& name) const {
  auto found = places_.find(name);
  if (found == places_.end()) damaged("it lacks the member " + name);
  return found->second;
}

std::string PackageFile::read(const std::string& name) const {
  const Place& found = place(name);
  std::string data = bytes(found.start, found.length);
  if (crc32(data) != found.checksum) damaged("its member " + name + " was changed");
  return data;
}

std::shared_ptr<Mapping> PackageFile::map(const std::string& name) const {
  const Place& found = place(name);
  return std::make_shared<Mapping>(file_.number(), found.start, found.length);
}

}  // namespace kiln
