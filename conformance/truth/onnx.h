/* onnx.h: one ONNX node case in memory, and the operators that are asked it. */
#ifndef ASSAY_CONFORMANCE_TRUTH_ONNX_H
#define ASSAY_CONFORMANCE_TRUTH_ONNX_H

#include <stdbool.h>

#include "core/json.h"
#include "truth_internal.h"

enum { ONNX_TENSORS = 12 };

typedef struct onnx_tensor {
  const char *name;
  assay_dtype dtype; /* f32, f16, i64; NONE: a type that no operator takes (bool, uint64), kept as numbers */
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK], count;
  double *value; /* [count] owned */
} onnx_tensor;

typedef struct onnx_case {
  const char *name, *op;
  const json_value *attributes;
  onnx_tensor tensor[ONNX_TENSORS];
  int32_t count;
  char left[200]; /* the reason why it cannot be asked, with the name of what is not known; "": it can */
} onnx_case;

const onnx_tensor *onnx_find(const onnx_case *c, const char *name); /* NULL: the case has no such tensor */
int64_t onnx_int(const onnx_case *c, const char *attribute, int64_t fallback);
double onnx_float(const onnx_case *c, const char *attribute, double fallback);
/* Returns the axis counted from the front. */
int64_t onnx_axis(const onnx_case *c, const onnx_tensor *t, int64_t fallback);

/* Notes an output that is not compared, and why. */
void onnx_leave(truth_report *r, const onnx_case *c, const char *output, const char *why);

/* Names in `c->left` the first opset, input, output, attribute or type of the case that is not known for its ONNX
 * operator. Returns true if all are known. */
bool onnx_is_known(onnx_case *c, const json_value *about);
/* As foreign_reference. A call that the operator's own limits refuse is ASSAY_ERR_UNSUPPORTED, with the reason in `r`.
 */
assay_status onnx_reference(foreign_call *f, truth_report *r, assay_error *error);

/* Each asks one operator of ours. ASSAY_ERR_UNSUPPORTED is no difference. Any other status than OK means that the case
 * contradicts itself, and is a failure. */
assay_status onnx_attention(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_norm(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_rotary(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_gelu(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_softmax(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_topk(const onnx_case *c, truth_report *r, assay_error *error);

#endif
