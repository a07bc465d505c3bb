/* truth_test.c: what others have published agrees with the references; one number changed in a copy, and it does not.
 */
#include <criterion/criterion.h>

#include "conformance/truth/truth.h"
#include "core/json.h"
#include "core/registry_add.h"
#include "files_fixture.h"

#define FIXTURES ASSAY_SOURCE_DIR "/fixtures/"
#define NANO     FIXTURES "models/gpt-nano-sort/"
#define STORIES  FIXTURES "models/stories260K/"
#define NORMS    FIXTURES "models/qwen3-0.6b-rmsnorm/"

#define ASSAY_OP(stem) const assay_op *assay_op_##stem(void);
#include "assay/ops.def"
#undef ASSAY_OP

static assay_error error;

static void start(void) {
  error.text[0] = '\0';
#define ASSAY_OP(stem) cr_assert_eq(assay_registry_add_op(assay_op_##stem(), &error), ASSAY_OK, "%s", error.text);
#include "assay/ops.def"
#undef ASSAY_OP
}

static void finish(void) {
  files_gone();
}

TestSuite(truth, .init = start, .fini = finish, .timeout = 200);

typedef assay_status (*truth_of)(const char *folder, truth_log *log, assay_error *error);

static assay_status lines_of(truth_of what, const char *folder, truth_log *log, test_output *lines) {
  output_open(lines);
  *log = (truth_log){.to = lines->stream};
  error.text[0] = '\0';
  const assay_status status = what(folder, log, &error);
  output_close(lines);
  return status;
}

static bool failed(const test_output *lines, const char *name) {
  char line[200];
  (void)snprintf(line, sizeof line, "FAIL        %s:", name);
  return strstr(lines->text, line) != NULL;
}

/* ---- ONNX -------------------------------------------------------------------------------------------- */

Test(truth, onnx_cases_agree) {
  truth_log log;
  test_output lines;
  cr_assert_eq(lines_of(truth_onnx, FIXTURES "onnx", &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.passed == 87 && log.failed == 0 && log.uncovered == 0, "%s", lines.text);
  output_free(&lines);
}

/* An operator that is not there is a difference, not a gap. */
Test(truth_bare, missing_operators_fail, .fini = finish) {
  truth_log log;
  test_output lines;
  cr_assert_eq(lines_of(truth_onnx, FIXTURES "onnx", &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.passed == 0 && log.failed == 87 && log.uncovered == 0, "%s", lines.text);
  cr_expect_not_null(strstr(lines.text, "FAIL        test_top_k: operator missing: sampler\n"));
  output_free(&lines);
  cr_assert_eq(lines_of(truth_tensors, NORMS, &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.passed == 0 && log.failed == 4, "%s", lines.text);
  output_free(&lines);
}

/* Outputs that no operator of ours gives. */
static bool is_covered(const json_value *entry, const char *output) {
  const json_value *attributes = json_member(entry, "attributes");
  if (strcmp(output, "Mean") == 0 || strcmp(output, "InvStdDev") == 0) return false;
  if (strcmp(output, "qk_matmul_output") == 0)
    return json_integer(json_member(attributes, "qk_matmul_output_mode"), "i", 0) == 3;
  /* a soft cap before an added mask */
  return !(strcmp(output, "Y") == 0 &&
           strcmp(json_text(entry, "case", ""), "test_attention_3d_with_past_and_present_qk_matmul_softcap") == 0);
}

/* One element of the tensor: a number moves by a thousandth, a whole number by one. */
static void spoil_tensor(unsigned char *packed, const json_value *file, uint64_t pick) {
  unsigned char *at = packed + json_integer(file, "packed_offset", 0);
  const char *dtype = json_text(file, "dtype", "");
  const int64_t bytes = json_integer(file, "raw_nbytes", 0);
  if (strcmp(dtype, "float32") == 0) {
    uint32_t bits;
    int64_t n = (int64_t)(pick % (uint64_t)(bytes / 4));
    for (;; n = (n + 1) % (bytes / 4)) { /* a zero stays one under every change that is small enough */
      memcpy(&bits, at + 4 * n, 4);
      if ((bits & 0x7fffffffu) > 0x30000000u) break;
    }
    bits ^= 1u << 13;
    memcpy(at + 4 * n, &bits, 4);
  } else if (strcmp(dtype, "float16") == 0) {
    at[2 * (pick % (uint64_t)(bytes / 2)) + 1] ^= 2; /* its 2^-2 */
  } else {
    at[8 * (pick % (uint64_t)(bytes / 8))] ^= 1;
  }
}

/* Every output of every case, one kind of output at a time. */
Test(truth, onnx_differences_are_seen) {
  test_bytes index = files_read(FIXTURES "onnx/index.json"), packed = files_read(FIXTURES "onnx/packed.bin");
  json_reader *reader = json_open();
  const json_value *list = NULL;
  cr_assert_eq(json_parse(reader, (char *)index.at, index.size, &list, &error), ASSAY_OK);
  (void)files_copy(FIXTURES "onnx/index.json", "index.json");
  int64_t spoiled = 0;
  for (int output = 0; output < 4; ++output) {
    test_bytes copy = {malloc(packed.size), packed.size};
    memcpy(copy.at, packed.at, packed.size);
    uint64_t pick = 0x9E3779B97F4A7C15u * (uint64_t)(output + 1);
    for (int pass = 0; pass < 2; ++pass) {
      truth_log log;
      test_output lines;
      if (pass == 1) {
        (void)files_put("packed.bin", copy.at, copy.size);
        cr_assert_eq(lines_of(truth_onnx, files_folder(), &log, &lines), ASSAY_OK, "%s", error.text);
      }
      for (const json_value *entry = list->child; entry != NULL; entry = entry->next) {
        const json_value *name = json_member(entry, "node_outputs")->child;
        for (int skip = 0; name != NULL && skip < output; ++skip)
          name = name->next;
        if (name == NULL || name->text[0] == '\0' || !is_covered(entry, name->text)) continue;
        for (const json_value *file = json_member(entry, "files")->child; file != NULL; file = file->next) {
          if (strcmp(json_text(file, "name", ""), name->text) != 0) continue;
          if (pass == 0) spoil_tensor(copy.at, file, pick = pick * 6364136223846793005u + 1442695040888963407u);
          if (pass == 0) ++spoiled;
          if (pass == 1)
            cr_expect(failed(&lines, json_text(entry, "case", "")), "%s of %s", name->text,
                      json_text(entry, "case", ""));
        }
      }
      if (pass == 1) output_free(&lines);
    }
    files_free(&copy);
  }
  cr_expect_geq(spoiled, 87, "%lld", (long long)spoiled);
  json_close(reader);
  files_free(&index);
  files_free(&packed);
}

Test(truth, onnx_bad_files) {
  static const struct {
    const char *old, *fresh, *says;
  } bad[] = {{"\"packed_offset\":768", "\"packed_offset\":999999999", "K: packed_offset: found 999999999"},
             {"\"packed_offset\":768", "\"packed_offset\":-1", "K: packed_offset: found -1"},
             {"\"raw_nbytes\":768", "\"raw_nbytes\":764", "Q: raw_nbytes: found 764, allowed 768"},
             {"\"float32\"", "\"\"", "Q: dtype: found none"},
             {"\"dims\"", "\"dimes\"", "Q: dims: found no list"},
             {"\"case\"", "\"cage\"", "a case without case, op or files"},
             {"[", "{", "JSON: "}};
  (void)files_copy(FIXTURES "onnx/packed.bin", "packed.bin");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    truth_log log;
    test_output lines;
    test_bytes index = files_read(FIXTURES "onnx/index.json");
    cr_assert(files_replace(&index, bad[i].old, bad[i].fresh), "%s", bad[i].old);
    (void)files_put("index.json", index.at, index.size);
    cr_expect_eq(lines_of(truth_onnx, files_folder(), &log, &lines), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, bad[i].says), "%s: %s", bad[i].says, error.text);
    cr_expect_eq(lines.size, 0, "nothing is judged: %s", lines.text);
    output_free(&lines);
    files_free(&index);
  }
}

/* Unknown opsets, inputs, attributes and their values, and types are named, and are never a difference. */
Test(truth, onnx_unknown) {
  static const struct {
    const char *old, *fresh, *says;
  } other[] = {
      {"\"kv_num_heads\":", "\"heads_of_kv\":", "not covered test_attention_3d: attribute heads_of_kv of Attention"},
      {"\"kv_num_heads\":{\"i\":3}", "\"kv_num_heads\":{\"i\":3},\"softmax_precision\":{\"i\":16}",
       "not covered test_attention_3d: attribute softmax_precision of Attention with this value"},
      {"\"kv_num_heads\":{\"i\":3}", "\"kv_num_heads\":{\"i\":3},\"is_causal\":{\"i\":2}",
       "not covered test_attention_3d: attribute is_causal of Attention with this value"},
      {"\"kv_num_heads\":{\"i\":3}", "\"kv_num_heads\":{\"i\":3},\"scale\":{\"f\":0}",
       "not covered test_attention_3d: attribute scale of Attention with this value"},
      {"\"kv_num_heads\":{\"i\":3}", "\"kv_num_heads\":{\"i\":7}",
       "not covered test_attention_3d: attribute kv_num_heads of Attention with this value"},
      {"\"kv_num_heads\":{\"i\":3}", "\"kv_num_heads\":{\"i\":0}",
       "not covered test_attention_3d: attribute kv_num_heads of Attention with this value"},
      {"\"kv_num_heads\":{\"i\":3}", "\"kv_num_heads\":{\"i\":3},\"qk_matmul_output_mode\":{\"i\":4}",
       "not covered test_attention_3d: attribute qk_matmul_output_mode of Attention with this value"},
      {"\"kv_num_heads\":{\"i\":3}", "\"kv_num_heads\":{\"ints\":[3]}",
       "not covered test_attention_3d: attribute kv_num_heads of Attention with this value"},
      {"[[\"\",23]]", "23", "not covered test_attention_3d: no opset of Attention"},
      {"\"node_inputs\":[\"Q\"", "\"node_inputs\":[\"Z\"",
       "not covered test_attention_3d: no tensor Z among the files, which node_inputs has"},
      {"\"raw_nbytes\":", "\"external_data\":1,\"raw_nbytes\":",
       "not covered test_attention_3d: Q with key external_data"},
      {"[[\"\",23]]", "[[\"\",25]]", "not covered test_attention_3d: opset 25 of Attention (known: 23 to 24)"},
      {"\"domain\":\"\"", "\"domain\":\"com.microsoft\"", "not covered test_attention_3d: domain com.microsoft"},
      {"\"name\":\"V\"", "\"name\":\"value\"", "not covered test_attention_3d: input or output value of Attention"},
      {"\"float32\"", "\"bfloat16\"", "not covered test_attention_3d: Q in bfloat16 (known: float32"},
      {"\"op\":\"Attention\"", "\"op\":\"FlexAttention\"", "not covered test_attention_3d: no operator does Flex"}};
  (void)files_copy(FIXTURES "onnx/packed.bin", "packed.bin");
  for (size_t i = 0; i < sizeof other / sizeof *other; ++i) {
    truth_log log;
    test_output lines;
    test_bytes index = files_read(FIXTURES "onnx/index.json");
    cr_assert(files_replace(&index, other[i].old, other[i].fresh), "%s", other[i].old);
    (void)files_put("index.json", index.at, index.size);
    cr_assert_eq(lines_of(truth_onnx, files_folder(), &log, &lines), ASSAY_OK, "%s", error.text);
    cr_expect(log.passed == 86 && log.failed == 0 && log.uncovered == 1, "%s", other[i].says);
    cr_expect_not_null(strstr(lines.text, other[i].says), "wanted %s: %.300s", other[i].says, lines.text);
    output_free(&lines);
    files_free(&index);
  }
}

/* ---- recorded tensors -------------------------------------------------------------------------------- */

static void copy_nano(void) {
  static const char *const names[] = {"manifest.json", "weights_f32.bin", "golden_pytorch_manifest.json",
                                      "golden_pytorch_f32.bin"};
  char from[500];
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    (void)snprintf(from, sizeof from, NANO "%s", names[i]);
    (void)files_copy(from, names[i]);
  }
}

Test(truth, tensors_agree) {
  truth_log log;
  test_output lines;
  cr_assert_eq(lines_of(truth_tensors, FIXTURES "models", &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.passed == 18 + 21 + 81 + 4 && log.failed == 0 && log.uncovered == 0, "%s", lines.text);
  output_free(&lines);
}

/* One number of every recorded tensor, and of the weights, moves by a 2^-8 of itself. */
Test(truth, tensor_differences_are_seen) {
  test_bytes text = files_read(NANO "golden_pytorch_manifest.json"), data = files_read(NANO "golden_pytorch_f32.bin");
  json_reader *reader = json_open();
  const json_value *root = NULL;
  cr_assert_eq(json_parse(reader, (char *)text.at, text.size, &root, &error), ASSAY_OK);
  copy_nano();
  for (const json_value *t = json_member(root, "tensors")->child; t != NULL; t = t->next) {
    truth_log log;
    test_output lines;
    uint32_t bits = 0, before = 0;
    const char *name = json_text(t, "name", "");
    unsigned char *at = data.at + json_integer(t, "offset", 0) + 4;
    if (strcmp(name, "idx") == 0) continue;
    for (; (before & 0x7fffffffu) < 0x3a000000u || (before & 0x7f800000u) == 0x7f800000u; at += 4) /* no 0, no -inf */
      memcpy(&before, at, 4);
    at -= 4;
    bits = before ^ 1u << 15;
    memcpy(at, &bits, 4);
    (void)files_put("golden_pytorch_f32.bin", data.at, data.size);
    memcpy(at, &before, 4);
    cr_assert_eq(lines_of(truth_tensors, files_folder(), &log, &lines), ASSAY_OK, "%s", error.text);
    cr_expect_geq(log.failed, 1, "%s: %s", name, lines.text);
    output_free(&lines);
  }
  (void)files_copy(NANO "golden_pytorch_f32.bin", "golden_pytorch_f32.bin");
  test_bytes weights = files_read(NANO "weights_f32.bin");
  weights.at[3072 + 2] ^= 0x40;
  (void)files_put("weights_f32.bin", weights.at, weights.size);
  truth_log log;
  test_output lines;
  cr_assert_eq(lines_of(truth_tensors, files_folder(), &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(failed(&lines, "qkv, gemm") && failed(&lines, "qkv, forward pass"), "%s", lines.text);
  output_free(&lines);
  json_close(reader);
  files_free(&text);
  files_free(&data);
  files_free(&weights);
}

/* The last bit of one bf16 number. */
Test(truth, norm_bits_are_seen) {
  truth_log log;
  test_output lines;
  test_bytes file = files_read(NORMS "norm-Qwen3-0.6B-01.safetensors");
  (void)files_copy(NORMS "input_layernorm_weight_bf16.bin", "input_layernorm_weight_bf16.bin");
  file.at[file.size - 400] ^= 1;
  (void)files_put("a.safetensors", file.at, file.size);
  cr_assert_eq(lines_of(truth_tensors, files_folder(), &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.failed == 1 && log.passed == 0, "%s", lines.text);
  output_free(&lines);
  files_free(&file);
}

Test(truth, tensor_bad_files) {
  static const struct {
    const char *old, *fresh, *says;
  } bad[] = {{"\"name\": \"ln1\"", "\"name\": \"ln7\"", "ln1: found no such tensor"},
             {"\"nbytes\": 6336", "\"nbytes\": 6332", "tok_emb: nbytes: found 6332, allowed 6336"},
             {"\"offset\": 132", "\"offset\": 182817", "tok_emb: offset: found 182817"},
             {"\"offset\": 132", "\"offset\": 133", "tok_emb: offset: found 133, allowed multiples"},
             {"\"name\": \"tok_emb\"", "\"name\": \"idx\"", "idx: found twice"}};
  truth_log log;
  test_output lines;
  copy_nano();
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    test_bytes text = files_read(NANO "golden_pytorch_manifest.json");
    cr_assert(files_replace(&text, bad[i].old, bad[i].fresh), "%s", bad[i].old);
    (void)files_put("golden_pytorch_manifest.json", text.at, text.size);
    cr_expect_eq(lines_of(truth_tensors, files_folder(), &log, &lines), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, bad[i].says), "%s: %s", bad[i].says, error.text);
    cr_expect_eq(lines.size, 0, "nothing is judged: %s", lines.text);
    output_free(&lines);
    files_free(&text);
  }
  files_gone();
  cr_expect_eq(lines_of(truth_tensors, files_folder(), &log, &lines), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "found no recorded tensors"), "%s", error.text);
  output_free(&lines);
}

/* ---- llama2c ----------------------------------------------------------------------------------------- */

static assay_status stories(const char *model, const char *golden, truth_log *log, test_output *lines) {
  output_open(lines);
  *log = (truth_log){.to = lines->stream};
  error.text[0] = '\0';
  const assay_status status = truth_llama2c(model, golden, "ref", log, &error);
  output_close(lines);
  return status;
}

Test(truth, ids_and_logits_agree) {
  truth_log log;
  test_output lines;
  cr_assert_eq(stories(STORIES "stories260K.bin", STORIES "golden_greedy_f32.json", &log, &lines), ASSAY_OK, "%s",
               error.text);
  cr_expect(log.passed == 11 && log.failed == 0 && log.uncovered == 0, "%s", lines.text);
  output_free(&lines);
}

/* The case "Once upon a time" alone, as a file; generated id number `wrong` becomes another. */
static const char *put_once(const char *name, int wrong) {
  static char text[8192];
  test_bytes all = files_read(STORIES "golden_greedy_f32.json");
  json_reader *reader = json_open();
  const json_value *root = NULL;
  cr_assert_eq(json_parse(reader, (char *)all.at, all.size, &root, &error), ASSAY_OK);
  const json_value *entry = json_member(root, "cases")->child->next;
  cr_assert_str_eq(json_text(entry, "prompt", ""), "Once upon a time");
  size_t used = (size_t)snprintf(text, sizeof text, "{\"cases\":[{\"id\":1,\"prompt\":\"Once upon a time\"");
  for (int list = 0; list < 2; ++list) {
    const char *key = list == 0 ? "prompt_ids" : "generated_ids";
    int i = 0;
    used += (size_t)snprintf(text + used, sizeof text - used, ",\"%s\":[", key);
    for (const json_value *at = json_member(entry, key)->child; at != NULL; at = at->next, ++i)
      used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? "," : "",
                               (int)at->number ^ (list == 1 && i == wrong));
    used += (size_t)snprintf(text + used, sizeof text - used, "]");
  }
  used += (size_t)snprintf(text + used, sizeof text - used, "}]}");
  json_close(reader);
  files_free(&all);
  return files_put(name, text, used);
}

Test(truth, id_and_logit_differences_are_seen) {
  truth_log log;
  test_output lines;
  test_bytes logits = files_read(STORIES "golden_logits_once_f64.bin");
  test_bytes streams = files_read(STORIES "golden_residual_once_f64.bin"),
             model = files_read(STORIES "stories260K.bin");
  const char *golden = put_once("ids.json", 2);
  cr_assert_eq(stories(STORIES "stories260K.bin", golden, &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.failed == 1 && failed(&lines, "case 1") && strstr(lines.text, "id 2 of 200") != NULL, "%s", lines.text);
  output_free(&lines);

  /* 1e-9 of the last logit of the last position; and of one residual stream. */
  double number;
  memcpy(&number, logits.at + logits.size - sizeof number, sizeof number);
  number += 2e-9;
  memcpy(logits.at + logits.size - sizeof number, &number, sizeof number);
  memcpy(&number, streams.at + streams.size / 2, sizeof number);
  number -= 2e-9;
  memcpy(streams.at + streams.size / 2, &number, sizeof number);
  golden = put_once("golden.json", -1);
  (void)files_put("golden_logits_once_f64.bin", logits.at, logits.size);
  (void)files_put("golden_residual_once_f64.bin", streams.at, streams.size);
  cr_assert_eq(stories(STORIES "stories260K.bin", golden, &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.failed == 2 && failed(&lines, "case 1") && failed(&lines, "case 1, residual stream 3"), "%s",
            lines.text);
  output_free(&lines);

  model.at[model.size / 2] ^= 0x80; /* a middle bit of one weight */
  (void)files_copy(STORIES "golden_logits_once_f64.bin", "golden_logits_once_f64.bin");
  (void)files_copy(STORIES "golden_residual_once_f64.bin", "golden_residual_once_f64.bin");
  cr_assert_eq(stories(files_put("model.bin", model.at, model.size), golden, &log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect_geq(log.failed, 1, "%s", lines.text);
  output_free(&lines);
  files_free(&logits);
  files_free(&streams);
  files_free(&model);
}

Test(truth, llama2c_bad_files) {
  truth_log log;
  test_output lines;
  static const struct {
    const char *old, *fresh, *says;
  } bad[] = {{"\"prompt_ids\"", "\"prompt_idz\"", "case 0: prompt_ids: found no list of ids"},
             {"403", "-403", "case 0: generated_ids: found '-403'"},
             {"403", "4.5", "case 0: generated_ids: found '4.5'"},
             {"\"cases\"", "\"caves\"", "cases: found none"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    test_bytes text = files_read(STORIES "golden_greedy_f32.json");
    cr_assert(files_replace(&text, bad[i].old, bad[i].fresh), "%s", bad[i].old);
    const char *path = files_put("ids.json", text.at, text.size);
    cr_expect_eq(stories(STORIES "stories260K.bin", path, &log, &lines), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, bad[i].says), "%s: %s", bad[i].says, error.text);
    cr_expect_eq(lines.size, 0);
    output_free(&lines);
    files_free(&text);
  }
  test_bytes logits = files_read(STORIES "golden_logits_once_f64.bin");
  (void)files_put("golden_logits_once_f64.bin", logits.at, logits.size - 8);
  const char *golden = files_copy(STORIES "golden_greedy_f32.json", "golden.json");
  cr_expect_eq(stories(STORIES "stories260K.bin", golden, &log, &lines), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "size: found 835576 bytes, allowed 835584"), "%s", error.text);
  output_free(&lines);
  files_free(&logits);
}
