// Eight threads on one package, without Python: serve m.kiln THREADS [SIZE ...].
//
// Each thread calls the package with tensors of these sizes, filled with 0, 1/8, 2/8 ...; all must
// get the result of the first call. Prints its sum, and calls per second.
#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "kiln/runtime.h"

namespace {

constexpr int kCalls = 50;

std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& results) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& result : results) {
    if (result.isTensor()) found.push_back(result.toTensor());
  }
  return found;
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) return std::fprintf(stderr, "serve PACKAGE THREADS [SIZE ...]\n"), 2;
  try {
    kiln::Package model(words[1]);
    std::vector<int64_t> sizes;
    for (int n = 3; n < count; n++) sizes.push_back(std::atoll(words[n]));
    int64_t elements = 1;
    for (int64_t size : sizes) elements *= size;
    at::Tensor x = at::arange(elements, at::kFloat).div(8).sin().view(sizes);
    std::vector<at::Tensor> given(model.arguments().size(), x);
    std::vector<at::Tensor> expected = tensors_in(model.run(given));

    std::atomic<int> wrong{0};
    auto serve = [&] {
      for (int n = 0; n < kCalls; n++) {
        std::vector<at::Tensor> found = tensors_in(model.run(given));
        for (size_t at = 0; at < found.size(); at++) wrong += !found[at].equal(expected[at]);
      }
    };
    auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int n = 0; n < std::atoi(words[2]); n++) threads.emplace_back(serve);
    for (std::thread& thread : threads) thread.join();
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s: sum %.6f, %d wrong, %.0f calls per second\n", model.name().c_str(),
                expected.at(0).sum().item<double>(), wrong.load(),
                std::atoi(words[2]) * kCalls / seconds.count());
    return wrong.load() != 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
