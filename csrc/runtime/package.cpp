// Loads a package and runs it on the executor of compiled regions. What is checked, and in which
// order: kiln/packages/loader.py.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

#include "executor/run.h"
#include "runtime/digest.h"
#include "runtime/errors.h"
#include "runtime/json.h"
#include "runtime/package_file.h"
#include "support/hex.h"

namespace kiln {

namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kDigestBytes = 32;
constexpr const char *kWeights = "weights.safetensors", *kConstants = "constants.safetensors";

const std::map<std::string, at::ScalarType>& dtypes() {
  static const std::map<std::string, at::ScalarType> found = {
      {"u8", at::kByte},
      {"i8", at::kChar},
      {"i16", at::kShort},
      {"i32", at::kInt},
      {"i64", at::kLong},
      {"f16", at::kHalf},
      {"f32", at::kFloat},
      {"f64", at::kDouble},
      {"c64", at::kComplexFloat},
      {"b8", at::kBool},
      {"c128", at::kComplexDouble},
      {"bf16", at::kBFloat16},
  };
  return found;
}

// A dlopened library, unloaded with this object.
struct Library {
  explicit Library(const std::string& code) {
    File file(memfd_create("kiln", MFD_CLOEXEC));
    for (size_t done = 0; done < code.size();) {
      ssize_t count = write(file.number(), code.data() + done, code.size() - done);
      if (count <= 0) damaged("its kernels cannot be written to memory");
      done += static_cast<size_t>(count);
    }
    std::string path = "/proc/self/fd/" + std::to_string(file.number());
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) damaged(std::string("its kernels cannot be loaded: ") + dlerror());
  }
  ~Library() { dlclose(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void* handle;
};

std::set<std::string> cpu_flags() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/cpuinfo", "r"), &std::fclose);
  std::set<std::string> found;
  std::string word;
  bool in_flags = false;
  for (int c = file ? std::getc(file.get()) : EOF; c != EOF; c = std::getc(file.get())) {
    if (!std::isspace(c)) {
      word.push_back(static_cast<char>(c));
      continue;
    }
    if (in_flags && !word.empty()) found.insert(word);
    in_flags = in_flags || word == "flags";
    word.clear();
    if (c == '\n' && in_flags) break;
  }
  return found;
}

void check_requirements(const Json& needed) {
  struct utsname machine;
  uname(&machine);
  const std::string& architecture = needed.at("architecture").text();
  if (architecture != machine.machine) foreign(architecture, machine.machine);
  std::string version =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  if (needed.at("torch").text() != version) {
    foreign("torch " + needed.at("torch").text(), "torch " + version);
  }
  if (needed.at("steps").integer() != kFormat) {
    foreign("plan format " + std::to_string(needed.at("steps").integer()),
            "plan format " + std::to_string(kFormat));
  }
  std::set<std::string> flags = cpu_flags();
  for (const Json& flag : needed.at("instructions").list()) {
    if (!flags.count(flag.text())) foreign(flag.text(), "a CPU without it");
  }
}

// A static size or stride, an offset, a position.
int64_t static_size(const Json& value) {
  if (value.integer() < 0) damaged("a size or position is negative");
  return value.integer();
}

std::vector<int64_t> static_sizes(const Json& values) {
  std::vector<int64_t> made;
  for (const Json& value : values.list()) made.push_back(static_size(value));
  return made;
}

// The tensors of a member, in the memory of the file, by name.
class Weights {
 public:
  explicit Weights(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {
    std::string_view all = mapping_->view();
    uint64_t length = 0;
    if (all.size() < 8) damaged("its tensors are cut short");
    std::memcpy(&length, all.data(), 8);
    if (length > all.size() - 8) damaged("the header of its tensors is longer than the file");
    header_ = Json::parse(all.substr(8, length));
    body_ = all.substr(8 + length);
  }

  at::Tensor tensor(const std::string& name, const Json& spec) const {
    const Json::List& ends = header_.at(name).at("data_offsets").list();
    if (ends.size() != 2) damaged("a tensor has no place");
    int64_t start = static_size(ends[0]), end = static_size(ends[1]);
    auto dtype = dtypes().find(spec.at("dtype").text());
    if (dtype == dtypes().end()) damaged("a tensor has the dtype " + spec.at("dtype").text());
    if (spec.at("device").text() != "cpu") foreign("a GPU", "the runtime for CPUs");
    std::vector<int64_t> sizes = static_sizes(spec.at("sizes"));
    std::vector<int64_t> strides = static_sizes(spec.at("strides"));
    int64_t offset = static_size(spec.at("offset")), reach = offset;
    if (sizes.size() != strides.size() || sizes.size() > 64) damaged("a tensor has no layout");
    bool empty = std::count(sizes.begin(), sizes.end(), 0) != 0;
    for (size_t axis = 0; !empty && axis < sizes.size(); axis++) {
      int64_t step = 0;
      if (__builtin_mul_overflow(sizes[axis] - 1, strides[axis], &step) ||
          __builtin_add_overflow(reach, step, &reach)) {
        damaged("a tensor is too large");
      }
    }
    int64_t item = static_cast<int64_t>(c10::elementSize(dtype->second)), bytes = 0;
    if (!empty) reach++;
    if (__builtin_mul_overflow(reach, item, &bytes) || end < start || end - start != bytes ||
        end > static_cast<int64_t>(body_.size()) || start % item) {
      damaged("the tensor " + name + " has other elements than its program");
    }
    auto keep = [mapping = mapping_](void*) {};
    char* data = const_cast<char*>(body_.data()) + start;
    at::Tensor flat = at::from_blob(data, {reach}, keep, at::TensorOptions(dtype->second));
    return flat.as_strided(sizes, strides, offset);
  }

 private:
  std::shared_ptr<Mapping> mapping_;
  Json header_;
  std::string_view body_;
};

// A leaf of the results: what the plan returns, or an input, by number; or a constant.
struct Result {
  enum class Kind : uint8_t { kPlan, kInput, kConstant };

  Kind kind;
  size_t number = 0;
  c10::IValue constant;
};

c10::IValue constant_of(const Json& value) {
  if (value.object().size() != 1) damaged("a constant has no value");
  const auto& [kind, plain] = *value.object().begin();
  if (kind == "float") return std::strtod(plain.text().c_str(), nullptr);
  if (const auto* flag = plain.as<bool>()) return *flag;
  if (const auto* number = plain.as<int64_t>()) return *number;
  if (const auto* text = plain.as<std::string>()) return *text;
  if (!plain.as<std::monostate>()) damaged("a result has more than 64 bits");
  return {};
}

// The members: machine code in memory of its own, weights in that of the file.
struct Parts {
  Parts(const PackageFile& file, const Json& listed, bool check_weights);
  const std::string& code(const std::string& name) const;

  std::map<std::string, std::string> read;
  std::map<std::string, std::shared_ptr<Mapping>> mapped;
};

Parts::Parts(const PackageFile& file, const Json& listed, bool check_weights) {
  if (file.size() != listed.object().size() + 1 + file.has("signature")) {
    damaged("its members are not those that its manifest names");
  }
  for (const char* name : {kWeights, kConstants}) mapped[name] = file.map(name);
  for (const auto& [name, part] : listed.object()) {
    auto data = mapped.find(name);
    bool is_code = data == mapped.end();
    std::string_view view = is_code ? read[name] = file.read(name) : data->second->view();
    bool same = static_cast<int64_t>(view.size()) == part.at("length").integer();
    if (same && (is_code || check_weights)) {
      same = hex(blake2b(view, kDigestBytes)) == part.at("digest").text();
    }
    if (!same) damaged("its member " + name + " has other contents than its manifest says");
  }
}

const std::string& Parts::code(const std::string& name) const {
  auto found = read.find(name);
  if (found == read.end()) damaged("its parts are not those of its program");
  return found->second;
}

}  // namespace

struct Package::Impl {
  std::string name;
  std::vector<std::string> arguments;
  std::map<std::string, size_t> numbers;  // of states
  std::vector<at::Tensor> states;
  std::vector<size_t> written;  // inputs
  std::vector<Result> results;
  std::unique_ptr<Library> library;
  std::unique_ptr<const Executor> executor;

  void load(const std::string& path, const LoadOptions& options);
  void read_interface(const Json& manifest, const Parts& parts);
  void read_results(const Json& manifest);
  void read_program(const Json& manifest, const Parts& parts);
  void check_numbers() const;

  const at::Tensor& input(const std::vector<at::Tensor>& given, size_t number) const {
    return number < states.size() ? states[number] : given[number - states.size()];
  }
  void refuse_overlap(const std::vector<at::Tensor>& given) const;
};

void Package::Impl::load(const std::string& path, const LoadOptions& options) {
  bool named = !options.digest.empty() || !options.key.empty();
  PackageFile file(path, options.trust || named);
  std::string text = file.read("manifest.json");
  if (!options.digest.empty() && hex(blake2b(text, kDigestBytes)) != options.digest) {
    untrusted("it has another digest than the one that was given");
  }
  if (!options.key.empty() &&
      (!file.has("signature") || file.read("signature") != hmac_blake2b(options.key, text))) {
    untrusted("it is not signed with this key");
  }
  Json manifest = Json::parse(text);
  if (manifest.at("kind").text() != "kiln.package") damaged("it is another kind of file");
  if (manifest.at("version").integer() != kVersion) damaged("its format has another version");
  check_requirements(manifest.at("requirements"));
  if (manifest.at("target").text().rfind("cpu", 0) != 0) foreign("a GPU", "the runtime for CPUs");
  Parts parts(file, manifest.at("parts"), named || options.check_weights);
  name = manifest.at("name").text();
  read_interface(manifest, parts);
  read_results(manifest);
  read_program(manifest, parts);
  check_numbers();
}

void Package::Impl::read_interface(const Json& manifest, const Parts& parts) {
  Weights weights(parts.mapped.at(kWeights));
  const Json::List& inputs = manifest.at("inputs").list();
  size_t count = manifest.at("signature").at("states").list().size();
  if (count > inputs.size()) damaged("it has more parameters than inputs");
  for (size_t n = 0; n < inputs.size(); n++) {
    const std::string& input = inputs[n].at("name").text();
    if (inputs[n].at("spec").has("scalar")) damaged("it takes numbers that a call may change");
    if (n >= count) {
      arguments.push_back(input);
      continue;
    }
    numbers[input] = n;
    states.push_back(weights.tensor(input, inputs[n].at("spec")));
  }
  for (const Json& number : manifest.at("written").list()) {
    written.push_back(static_cast<size_t>(static_size(number)));
  }
}

void Package::Impl::read_results(const Json& manifest) {
  const Json& signature = manifest.at("signature");
  const Json::List& leaves = signature.at("arguments").list();
  const Json::List& sizes = manifest.at("sizes").list();
  auto outputs = static_cast<size_t>(static_size(manifest.at("outputs")));
  for (const Json& leaf : signature.at("results").list()) {
    const std::string& kind = leaf.at("kind").text();
    auto number = static_cast<size_t>(static_size(leaf.at("number")));
    if (kind == "output" || kind == "number") {
      results.push_back({Result::Kind::kPlan, number});
    } else if (kind == "size") {
      auto same = [&](const Json& size) { return size.text() == leaf.at("value").text(); };
      auto found = std::find_if(sizes.begin(), sizes.end(), same);
      if (found == sizes.end()) damaged("its plan does not return the sizes among its results");
      results.push_back({Result::Kind::kPlan, outputs + (found - sizes.begin())});
    } else if (kind == "constant") {
      results.push_back({Result::Kind::kConstant, 0, constant_of(leaf.at("value"))});
    } else if (kind == "state") {
      results.push_back({Result::Kind::kInput, number});
    } else if (kind == "argument" && number < leaves.size()) {
      auto input = static_cast<size_t>(static_size(leaves[number].at("number")));
      results.push_back({Result::Kind::kInput, input});
    } else {
      damaged("a result is of an unknown kind");
    }
  }
}

void Package::Impl::read_program(const Json& manifest, const Parts& parts) {
  Weights weights(parts.mapped.at(kConstants));
  std::vector<TensorPtr> constants;
  for (const Json& row : manifest.at("constants").list()) {
    at::Tensor constant = weights.tensor(row.at("name").text(), row.at("spec"));
    constants.push_back(constant.getIntrusivePtr());
  }
  if (!manifest.at("kernels").list().empty()) {
    library = std::make_unique<Library>(parts.code("kernels.so"));
  }
  const std::string& words = parts.code("program.bin");
  auto find = [this](const char* symbol) {
    return library ? dlsym(library->handle, symbol) : nullptr;
  };
  executor = std::make_unique<Executor>(decode_program(words.data(), words.size()),
                                        std::move(constants), Kernels{find, {}});
}

void Package::Impl::check_numbers() const {
  size_t count = states.size() + arguments.size(), outputs = executor->program().outputs.size();
  if (executor->program().inputs.size() != count) damaged("its plan takes other inputs");
  for (size_t number : written) {
    if (number >= count) damaged("it changes an input that it does not take");
  }
  for (const Result& result : results) {
    if (result.number >= (result.kind == Result::Kind::kPlan ? outputs : count) &&
        result.kind != Result::Kind::kConstant) {
      damaged("its plan has other outputs");
    }
  }
}

// An argument that is written has its memory for itself: otherwise others would change with it.
void Package::Impl::refuse_overlap(const std::vector<at::Tensor>& given) const {
  for (size_t changed : written) {
    const at::Tensor& target = input(given, changed);
    size_t first = changed < states.size() ? states.size() : 0;
    for (size_t n = first; n < states.size() + given.size(); n++) {
      const at::Tensor& other = input(given, n);
      if (n == changed || !target.numel() || !other.numel()) continue;
      if (other.storage().data() == target.storage().data()) {
        wrong_input("the package changes an argument that shares memory");
      }
    }
  }
}

Package::Package(const std::string& path, const LoadOptions& options)
    : impl_(std::make_unique<Impl>()) {
  at::NoGradGuard without_gradients;
  try {
    impl_->load(path, options);
  } catch (const PlanError& error) {
    damaged(error.detail);
  } catch (const std::out_of_range& error) {
    damaged(error.what());
  }
}

Package::~Package() = default;
Package::Package(Package&&) noexcept = default;
Package& Package::operator=(Package&&) noexcept = default;

const std::string& Package::name() const { return impl_->name; }
const std::vector<std::string>& Package::arguments() const { return impl_->arguments; }

at::Tensor Package::state(const std::string& name) const {
  auto found = impl_->numbers.find(name);
  if (found == impl_->numbers.end()) wrong_input("there is no state " + name);
  return impl_->states[found->second];
}

std::vector<c10::IValue> Package::run(const std::vector<at::Tensor>& arguments) const {
  const Impl& impl = *impl_;
  if (arguments.size() != impl.arguments.size()) {
    wrong_input("the package takes " + std::to_string(impl.arguments.size()) + " tensors, not " +
                std::to_string(arguments.size()));
  }
  for (const at::Tensor& argument : arguments) {
    if (!argument.defined()) wrong_input("an argument is undefined");
  }
  impl.refuse_overlap(arguments);
  at::NoGradGuard without_gradients;
  const Program& program = impl.executor->program();
  std::vector<c10::IValue> leaves;
  try {
    Executor::Call call(*impl.executor);
    for (size_t n = 0; n < program.inputs.size(); n++) {
      call.inputs()[n].borrow(impl.input(arguments, n).unsafeGetTensorImpl());
    }
    call.run([](void*) {}, nullptr);
    if (program.has_views) rebuild_views(program, call.inputs(), call.results().data());
    for (const Result& result : impl.results) {
      if (result.kind == Result::Kind::kConstant) {
        leaves.push_back(result.constant);
      } else if (result.kind == Result::Kind::kInput) {
        leaves.emplace_back(impl.input(arguments, result.number));
      } else if (const Value& value = call.results()[result.number]; value.is_tensor()) {
        leaves.emplace_back(at::Tensor(value.share()));
      } else {
        leaves.emplace_back(value.integer());
      }
    }
  } catch (const PlanError& error) {
    std::string at = error.origin.empty() ? "" : " (" + error.origin + ")";
    wrong_input("the package cannot run on these arguments: " + error.detail + at);
  }
  return leaves;
}

}  // namespace kiln
