/* One call of a package from C: call m.kiln ROWS COLUMNS prints the first elements of the first result.
 *
 * Tensors are DLPack's: this program owns the memory of its argument, the package that of the result. */
#include <ATen/dlpack.h>
#include <stdio.h>
#include <stdlib.h>

#include "kiln/runtime.h"

static void release(DLManagedTensor* tensor) {
  free(tensor->dl_tensor.data);
  free(tensor->dl_tensor.shape);
  free(tensor);
}

static DLManagedTensor* matrix(int64_t rows, int64_t columns) {
  DLManagedTensor* made = calloc(1, sizeof *made);
  float* data = aligned_alloc(64, (size_t)(rows * columns * 4 + 63) / 64 * 64);
  for (int64_t n = 0; n < rows * columns; n++) data[n] = (float)n / 8;
  int64_t* shape = malloc(2 * sizeof *shape);
  shape[0] = rows, shape[1] = columns;
  made->dl_tensor.data = data;
  made->dl_tensor.device.device_type = kDLCPU;
  made->dl_tensor.ndim = 2;
  made->dl_tensor.dtype.code = kDLFloat;
  made->dl_tensor.dtype.bits = 32;
  made->dl_tensor.dtype.lanes = 1;
  made->dl_tensor.shape = shape;
  made->deleter = release;
  return made;
}

static int failed(char* problem) {
  fprintf(stderr, "%s\n", problem);
  kiln_free_text(problem);
  return 1;
}

int main(int count, char** words) {
  KilnPackage* package = NULL;
  DLManagedTensor *argument, *results[8];
  int num_results = 8;
  char* problem;
  if (count != 4) return 2;
  problem = kiln_load(words[1], NULL, 0, &package);
  if (problem) return failed(problem);
  argument = matrix(atoll(words[2]), atoll(words[3]));
  problem = kiln_run(package, &argument, 1, results, &num_results);
  if (problem) return kiln_unload(package), failed(problem);
  for (int n = 0; n < 4; n++) printf("%.5f ", ((float*)results[0]->dl_tensor.data)[n]);
  printf("%d results\n", num_results);
  for (int n = 0; n < num_results; n++) results[n]->deleter(results[n]);
  kiln_unload(package);
  return 0;
}
