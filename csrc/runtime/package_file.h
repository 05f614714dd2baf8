// The zip file of a package: stored members, read or mapped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace kiln {

// An open file, closed with this object.
class File {
 public:
  explicit File(int number) : number_(number) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int number() const { return number_; }

 private:
  int number_;
};

// Part of a file in private memory: writing to it changes no file.
class Mapping {
 public:
  Mapping(int file, int64_t start, int64_t length);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return start_; }
  std::string_view view() const { return {start_, static_cast<size_t>(length_)}; }

 private:
  void* memory_ = nullptr;
  char* start_ = nullptr;
  int64_t length_, mapped_;
};

class PackageFile {
 public:
  // Throws PackageError, also if the file is not `trusted` and others may have written it.
  PackageFile(const std::string& path, bool trusted);

  bool has(const std::string& name) const { return places_.count(name) != 0; }
  size_t size() const { return places_.size(); }
  std::string read(const std::string& name) const;
  std::shared_ptr<Mapping> map(const std::string& name) const;

 private:
  void read_directory(int64_t size);
  std::string bytes(int64_t start, int64_t length) const;
  // Where a member is, with the CRC-32 of the zip file, which a mapped member is not compared with.
  struct Place {
    int64_t start, length;
    uint32_t checksum;
  };
  const Place& place(const std::string& name) const;

  File file_;
  std::map<std::string, Place> places_;
};

}  // namespace kiln
