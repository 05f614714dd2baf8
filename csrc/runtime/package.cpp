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
#include "kiln/runtime.h"
#include "runtime/digest.h"
#include "runtime/json.h"
#include "runtime/package_file.h"

namespace kiln {

namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kDigestBytes = 32;
const char* const kData[] = {"weights.safetensors", "constants.safetensors"};

[[noreturn]] void damaged(const std::string& problem) {
  throw PackageError("KILN6103  the file is not a package that this version can load: " + problem);
}

[[noreturn]] void foreign(const std::string& needed, const std::string& found) {
  throw PackageError("KILN6104  the package needs " + needed + ", here is " + found);
}

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
    int file = memfd_create("kiln", MFD_CLOEXEC);
    size_t done = 0;
    while (file >= 0 && done < code.size()) {
      ssize_t count = write(file, code.data() + done, code.size() - done);
      if (count <= 0) damaged("its kernels cannot be written to memory");
      done += static_cast<size_t>(count);
    }
    handle = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (file >= 0) close(file);
    if (!handle) damaged(std::string("its kernels cannot be loaded: ") + dlerror());
  }
  ~Library() { dlclose(handle); }
  void* handle;
};

void link(Program& program, const Library* library) {
  for (KernelEntry& kernel : program.kernels) {
    void* found = library ? dlsym(library->handle, kernel.symbol.c_str()) : nullptr;
    if (!found || kernel.on_device) damaged("it lacks the kernel " + kernel.symbol);
    kernel.function = reinterpret_cast<KernelFunction>(found);
  }
  for (Step& step : program.steps) {
    if (auto* branch = std::get_if<BranchStep>(&step.data)) {
      link(*branch->if_true, library);
      link(*branch->if_false, library);
    }
    if (auto* loop = std::get_if<LoopStep>(&step.data)) {
      link(*loop->body, library);
      for (auto& test : loop->test) link(*test, library);
    }
  }
}

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

// Static sizes, strides or the offset of a weight.
int64_t static_size(const Json& value) {
  if (!value.is_integer() || value.integer() < 0) damaged("the layout of a tensor is not static");
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

// A leaf of the results.
struct Result {
  std::string kind;
  int64_t number = 0;  // of an output, an input or a size
  c10::IValue constant;
};

c10::IValue constant_of(const Json& value) {
  const auto& [kind, plain] = value.object().at(0);
  if (kind == "float") return std::strtod(plain.text().c_str(), nullptr);
  if (plain.is_bool()) return plain.flag();
  if (plain.is_integer()) return plain.integer();
  if (plain.is_text()) return plain.text();
  return {};
}

}  // namespace

struct Package::Impl {
  std::string name;
  std::vector<std::string> arguments;
  std::map<std::string, size_t> numbers;  // of states
  std::vector<at::Tensor> states;
  std::vector<int64_t> written;  // inputs
  std::vector<Result> results;
  std::unique_ptr<Library> library;
  std::unique_ptr<const Executor> executor;

  void load(const std::string& path, const LoadOptions& options);
  void check_parts(const PackageFile& file, const Json& parts, bool all) const;
  void read_interface(const Json& manifest, const PackageFile& file);
  void read_results(const Json& manifest);
  void read_program(const Json& manifest, const PackageFile& file);
  void refuse_overlap(const std::vector<at::Tensor>& given) const;
};

void Package::Impl::load(const std::string& path, const LoadOptions& options) {
  bool named = !options.digest.empty() || !options.key.empty();
  PackageFile file(path, options.trust || named);
  std::string text = file.read("manifest.json");
  if (!options.digest.empty() && hex(blake2b(text, kDigestBytes)) != options.digest) {
    throw PackageError("KILN6105  the package has another digest than the one that was given");
  }
  if (!options.key.empty() &&
      (!file.has("signature") || file.read("signature") != hmac_blake2b(options.key, text))) {
    throw PackageError("KILN6105  the package is not signed with this key");
  }
  Json manifest = Json::parse(text);
  if (manifest.at("kind").text() != "kiln.package") damaged("it is another kind of file");
  if (manifest.at("version").integer() != kVersion) damaged("its format has another version");
  check_requirements(manifest.at("requirements"));
  if (manifest.at("target").text().rfind("cpu", 0) != 0) foreign("a GPU", "the runtime for CPUs");
  check_parts(file, manifest.at("parts"), named || options.check_weights);
  name = manifest.at("name").text();
  read_interface(manifest, file);
  read_results(manifest);
  read_program(manifest, file);
}

void Package::Impl::check_parts(const PackageFile& file, const Json& parts, bool all) const {
  if (file.size() != parts.object().size() + 1 + file.has("signature")) {
    damaged("its members are not those that its manifest names");
  }
  for (const auto& [member, part] : parts.object()) {
    bool is_code = std::find(std::begin(kData), std::end(kData), member) == std::end(kData);
    std::shared_ptr<Mapping> mapped = file.map(member);
    bool same = static_cast<int64_t>(mapped->view().size()) == part.at("length").integer();
    if (same && (is_code || all)) {
      same = hex(blake2b(mapped->view(), kDigestBytes)) == part.at("digest").text();
    }
    if (!same) damaged("its member " + member + " has other contents than its manifest says");
  }
}

void Package::Impl::read_interface(const Json& manifest, const PackageFile& file) {
  Weights weights(file.map("weights.safetensors"));
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
  for (const Json& number : manifest.at("written").list()) written.push_back(static_size(number));
}

void Package::Impl::read_results(const Json& manifest) {
  const Json& signature = manifest.at("signature");
  const Json::List& leaves = signature.at("arguments").list();
  const Json::List& sizes = manifest.at("sizes").list();
  int64_t outputs = static_size(manifest.at("outputs"));
  for (const Json& leaf : signature.at("results").list()) {
    Result made{leaf.at("kind").text(), static_size(leaf.at("number")), {}};
    if (made.kind == "argument") {
      if (made.number >= static_cast<int64_t>(leaves.size())) damaged("a result is no argument");
      made.number = static_size(leaves[static_cast<size_t>(made.number)].at("number"));
    } else if (made.kind == "size") {
      auto same = [&](const Json& size) { return size.text() == leaf.at("value").text(); };
      auto found = std::find_if(sizes.begin(), sizes.end(), same);
      if (found == sizes.end()) damaged("its plan does not return the sizes among its results");
      made.number = outputs + (found - sizes.begin());
    } else if (made.kind == "constant") {
      made.constant = constant_of(leaf.at("value"));
    } else if (made.kind != "output" && made.kind != "state") {
      damaged("a result is of an unknown kind");
    }
    results.push_back(std::move(made));
  }
}

void Package::Impl::read_program(const Json& manifest, const PackageFile& file) {
  Weights weights(file.map("constants.safetensors"));
  std::vector<TensorPtr> constants;
  for (const Json& row : manifest.at("constants").list()) {
    at::Tensor constant = weights.tensor(row.at("name").text(), row.at("spec"));
    constants.push_back(constant.getIntrusivePtr());
  }
  auto compared = [&](const std::string& member) {  // what is run is what has been compared
    std::string data = file.read(member);
    if (hex(blake2b(data, kDigestBytes)) != manifest.at("parts").at(member).at("digest").text()) {
      damaged("it changes while it is loaded");
    }
    return data;
  };
  if (!manifest.at("kernels").list().empty()) {
    library = std::make_unique<Library>(compared("kernels.so"));
  }
  std::string words = compared("program.bin");
  std::unique_ptr<Program> program = decode_program(words.data(), words.size());
  link(*program, library.get());
  auto outputs = static_cast<int64_t>(program->outputs.size());
  auto count = static_cast<int64_t>(program->inputs.size());
  if (program->inputs.size() != states.size() + arguments.size()) {
    damaged("its plan takes other inputs");
  }
  for (const Result& result : results) {
    bool of_plan = result.kind == "output" || result.kind == "size";
    if (result.kind != "constant" && result.number >= (of_plan ? outputs : count)) {
      damaged("its plan has other outputs");
    }
  }
  executor = std::make_unique<Executor>(std::move(program), std::move(constants), KernelImages());
}

// An argument that is written has its memory for itself: otherwise others would change with it.
void Package::Impl::refuse_overlap(const std::vector<at::Tensor>& given) const {
  auto count = static_cast<int64_t>(states.size());
  auto input = [&](int64_t n) { return n < count ? states[n] : given[n - count]; };
  for (int64_t changed : written) {
    at::Tensor target = input(changed);
    for (int64_t n = changed < count ? count : 0; n < count + static_cast<int64_t>(given.size());
         n++) {
      if (n == changed || !target.numel() || !input(n).numel()) continue;
      if (input(n).storage().data() == target.storage().data()) {
        throw PackageError("KILN5104  the package changes an argument that shares memory");
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
  if (found == impl_->numbers.end()) throw PackageError("KILN5104  there is no state " + name);
  return impl_->states[found->second];
}

std::vector<c10::IValue> Package::run(const std::vector<at::Tensor>& arguments) const {
  const Impl& impl = *impl_;
  if (arguments.size() != impl.arguments.size()) {
    throw PackageError("KILN5104  the package takes " + std::to_string(impl.arguments.size()) +
                       " tensors, not " + std::to_string(arguments.size()));
  }
  for (const at::Tensor& argument : arguments) {
    if (!argument.defined()) throw PackageError("KILN5104  an argument is undefined");
  }
  impl.refuse_overlap(arguments);
  at::NoGradGuard without_gradients;
  const Program& program = impl.executor->program();
  std::vector<at::Tensor> inputs = impl.states;
  inputs.insert(inputs.end(), arguments.begin(), arguments.end());
  std::vector<c10::IValue> leaves;
  try {
    Executor::Call call(*impl.executor);
    for (size_t n = 0; n < inputs.size(); n++) {
      call.inputs()[n].borrow(inputs[n].unsafeGetTensorImpl());
    }
    call.run([](void*) {}, nullptr);
    if (program.has_views) rebuild_views(program, call.inputs(), call.results().data());
    for (const Result& result : impl.results) {
      if (result.kind == "output") {
        leaves.emplace_back(at::Tensor(call.results()[static_cast<size_t>(result.number)].share()));
      } else if (result.kind == "size") {
        leaves.emplace_back(call.results()[static_cast<size_t>(result.number)].integer());
      } else if (result.kind == "constant") {
        leaves.push_back(result.constant);
      } else {
        leaves.emplace_back(inputs[static_cast<size_t>(result.number)]);
      }
    }
  } catch (const PlanError& error) {
    std::string at = error.origin.empty() ? "" : " (" + error.origin + ")";
    throw PackageError("KILN5104  the package cannot run on these arguments: " + error.detail + at);
  }
  return leaves;
}

}  // namespace kiln
