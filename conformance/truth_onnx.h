/* truth_onnx.h: one ONNX node case in memory, and how it is asked of an operator's reference. */
#ifndef ASSAY_CONFORMANCE_TRUTH_ONNX_H
#define ASSAY_CONFORMANCE_TRUTH_ONNX_H

#include "core/json.h"
#include "truth_parts.h"

enum { ONNX_TENSORS = 12 };

typedef struct onnx_tensor {
  const char *name;
  assay_dtype dtype; /* f32, f16, i64; NONE: a type that no operator takes (bool, uint64), as numbers */
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK], count;
  double *value; /* [count] owned */
} onnx_tensor;

typedef struct onnx_case {
  const char *name, *op;
  const json_value *attributes;
  onnx_tensor tensor[ONNX_TENSORS];
  int32_t count;
} onnx_case;

const onnx_tensor *onnx_find(const onnx_case *c, const char *name); /* NULL: not there */
int64_t onnx_int(const onnx_case *c, const char *attribute, int64_t fallback);
double onnx_float(const onnx_case *c, const char *attribute, double fallback);
/* axis from the front */
int64_t onnx_axis(const onnx_case *c, const onnx_tensor *t, int64_t fallback);

/* An output that is not compared. */
void onnx_leave(truth_report *r, const onnx_case *c, const char *output, const char *why);

/* Each asks one operator of ours; a status other than OK: could not be asked, and is a failure. */
assay_status onnx_attention(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_norm(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_rotary(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_gelu(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_softmax(const onnx_case *c, truth_report *r, assay_error *error);
assay_status onnx_topk(const onnx_case *c, truth_report *r, assay_error *error);

#endif
