/* gpt_tensor.c: a tensor of a recorded forward pass by name. */
#include <string.h>

#include "gpt.h"

const file_tensor *recorded_tensor(const recorded *g, const char *name) {
  const file_tensor *t = tensor_file_find(&g->golden, name);
  return t != NULL ? t : tensor_file_find(&g->model.file, name);
}
