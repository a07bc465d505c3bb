/* files_test.c: models and tensors in files: what is whole is read, what lies about itself is refused by name, and
 * nothing is handed out. */
#include <criterion/criterion.h>

#include <sys/stat.h>
#include <unistd.h>

#include "conformance/models/open.h"
#include "conformance/models/run.h"
#include "conformance/models/sample.h"
#include "core/files/bytes.h"
#include "core/files/model_config.h"
#include "files_fixture.h"
#include "model_small.h"

#define STORIES ASSAY_SOURCE_DIR "/fixtures/models/stories260K/stories260K.bin"
#define NANO    ASSAY_SOURCE_DIR "/fixtures/models/gpt-nano-sort/"
#define NORM    ASSAY_SOURCE_DIR "/fixtures/models/qwen3-0.6b-rmsnorm/norm-Qwen3-0.6B-00.safetensors"

static assay_error error;

TestSuite(files, .fini = files_gone, .timeout = 100);

static void refused(const char *path, const char *says) {
  model_file model;
  error.text[0] = '\0';
  cr_expect_eq(model_open(path, &model, &error), ASSAY_ERR_INPUT, "%s: taken", says);
  cr_expect_not_null(strstr(error.text, says), "wanted %s: %s", says, error.text);
  cr_expect(model.weights.tensor == NULL && model.file.bytes == NULL, "%s: something was handed out", says);
}

static const assay_tensor *weight(const model_file *m, const char *name) {
  const int32_t i = assay_model_weight_index(&m->config, name);
  cr_assert_geq(i, 0, "%s", name);
  return &m->weights.tensor[i];
}

/* ---- llama2.c ---------------------------------------------------------------------------------------- */

Test(files, checkpoint) {
  model_file m;
  test_bytes file = files_read(STORIES);
  const float *raw = (const float *)(const void *)(file.at + 28);
  cr_assert_eq(model_open(STORIES, &m, &error), ASSAY_OK, "%s", error.text);
  cr_expect(m.config.layers == 5 && m.config.hidden == 64 && m.config.head_size == 8 && m.config.kv_heads == 4 &&
            m.config.intermediate == 172 && m.config.vocab == 512 && m.config.max_pos == 512 && m.config.tied_head);
  cr_expect_eq(assay_model_weights_check(&m.config, &m.weights, &error), ASSAY_OK, "%s", error.text);
  /* Where the parts of layer 3 lie: embedding, norms, wq, wk, wv, wo, norms, w1, w2, w3. */
  const int64_t norm = 512 * 64, wq = norm + 5 * 64, wk = wq + 5 * 64 * 64, wv = wk + 5 * 32 * 64;
  const int64_t w1 = wv + 5 * 32 * 64 + 5 * 64 * 64 + 5 * 64, w3 = w1 + 2 * 5 * 172 * 64;
  const float *qkv = weight(&m, "layers.3.attn.qkv.w")->data, *up = weight(&m, "layers.3.mlp.up.w")->data;
  cr_expect_eq(memcmp(qkv, raw + wq + 3 * 64 * 64, 64 * 64 * 4), 0);
  cr_expect_eq(memcmp(qkv + 64 * 64, raw + wk + 3 * 32 * 64, 32 * 64 * 4), 0);
  cr_expect_eq(memcmp(qkv + 96 * 64, raw + wv + 3 * 32 * 64, 32 * 64 * 4), 0);
  cr_expect_eq(memcmp(up, raw + w1 + 3 * 172 * 64, 172 * 64 * 4), 0, "the gate half first");
  cr_expect_eq(memcmp(up + 172 * 64, raw + w3 + 3 * 172 * 64, 172 * 64 * 4), 0);
  model_file_free(&m);
  files_free(&file);
}

/* vocab_size below 0: a head of its own after the tables. */
Test(files, checkpoint_with_a_head) {
  model_file m;
  test_bytes file = files_read(STORIES);
  const size_t head = 512 * 64 * 4;
  unsigned char *longer = malloc(file.size + head);
  memcpy(longer, file.at, file.size);
  memcpy(longer + file.size, file.at + 28 + 400, head);
  const int32_t vocab = -512;
  memcpy(longer + 20, &vocab, 4);
  cr_assert_eq(model_open(files_put("head.bin", longer, file.size + head), &m, &error), ASSAY_OK, "%s", error.text);
  cr_expect_not(m.config.tied_head);
  cr_expect_eq(memcmp(weight(&m, "head.w")->data, file.at + 28 + 400, head), 0);
  model_file_free(&m);
  refused(files_put("short.bin", longer, file.size), "size: found");
  free(longer);
  files_free(&file);
}

Test(files, checkpoint_that_lies) {
  static const struct {
    int field;
    int32_t value;
    const char *says;
  } bad[] = {{0, 0, "dim: found 0, allowed 1 to"},
             {0, -64, "dim: found -64"},
             {0, 63, "dim: found 63, allowed multiples of n_heads"},
             {0, 72, "head_size: found 9"},
             {0, 128, "size: found 1056540 bytes, allowed"},
             {1, 1 << 30, "hidden_dim: found"},
             {1, 173, "size: found"},
             {2, 0, "n_layers: found 0"},
             {2, 4, "size: found"},
             {3, 0, "n_heads: found 0"},
             {4, 3, "heads: found 8, allowed multiples of kv_heads (3)"},
             {4, -1, "n_kv_heads: found -1"},
             {5, 0, "vocab_size: found 0"},
             {5, INT32_MIN, "vocab_size: found -2147483648"},
             {6, -5, "seq_len: found -5"},
             {6, 513, "size: found"}};
  test_bytes file = files_read(STORIES);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    int32_t kept;
    memcpy(&kept, file.at + 4 * bad[i].field, 4);
    memcpy(file.at + 4 * bad[i].field, &bad[i].value, 4);
    refused(files_put("lies.bin", file.at, file.size), bad[i].says);
    memcpy(file.at + 4 * bad[i].field, &kept, 4);
  }
  for (size_t size = 0; size < 28; ++size)
    refused(files_put("cut.bin", file.at, size), "header: found");
  refused(files_put("cut.bin", file.at, file.size - 1), "size: found 1056539 bytes, allowed 1056540");
  refused(files_put("long.bin", file.at, file.size + 1), "size: found 1056541 bytes, allowed 1056540");
  refused("/nowhere/model.bin", "cannot be read");
  refused("/tmp", "/tmp/config.json: cannot be read");
  files_free(&file);
}

/* ---- the flat format --------------------------------------------------------------------------------- */

static assay_model_config small_asynct(void) {
  assay_model_config c = assay_model_production(ASSAY_ASYNCT);
  c.layers = 2;
  c.hidden = 32;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_size = c.rotated = 16;
  c.intermediate = 48;
  c.vocab = 50;
  c.max_pos = 64;
  return c;
}

/* The weights of a configuration as weights.bin, and the manifest as text. */
static void write_flat(const assay_model_config *c, const assay_model_weights *w, const char *config) {
  static char text[1 << 16];
  unsigned char *data = calloc(1, 1 << 20);
  size_t used = 0;
  int64_t offset = 0;
  assay_weight_spec spec;
  used += (size_t)snprintf(text, sizeof text,
                           "{\"data\": \"weights.bin\", \"dtype\": \"bf16\", \"config\": %s,\n\"tensors\": [", config);
  for (int32_t i = 0; assay_model_weight_spec(c, i, &spec); ++i) {
    int64_t count = 1;
    char shape[60] = "";
    for (int32_t a = 0; a < spec.rank; ++a) {
      count *= spec.shape[a];
      (void)snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", a > 0 ? ", " : "",
                     (long long)spec.shape[a]);
    }
    const int64_t size = assay_dtype_size(spec.dtype);
    offset = (offset + size - 1) / size * size;
    used += (size_t)snprintf(text + used, sizeof text - used,
                             "%s\n{\"name\": \"%s\", \"dtype\": \"%s\", \"shape\": [%s], \"offset\": %lld}",
                             i > 0 ? "," : "", spec.name, assay_dtype_name(spec.dtype), shape, (long long)offset);
    memcpy(data + offset, w->tensor[i].data, (size_t)(count * size));
    offset += count * size;
  }
  used += (size_t)snprintf(text + used, sizeof text - used, "]}\n");
  (void)files_put("manifest.json", text, used);
  (void)files_put("weights.bin", data, (size_t)offset);
  free(data);
}

static const char config_text[] =
    "{\"arch\": \"asynct\", \"layers\": 2, \"hidden\": 32, \"heads\": 2, \"kv_heads\": 1, \"head_size\": 16, "
    "\"rotated\": 16, \"intermediate\": 48, \"vocab\": 50, \"max_pos\": 64}";

static void ids_of(const model_file *m, int32_t *ids) {
  const int32_t prompt[] = {3, 1, 4, 1, 5};
  run_request request = {.prompt = prompt, .prompt_count = 5, .steps = 8, .ids = ids};
  const run_plan plan = {.chunk = 2, .shuffled = true};
  cr_assert_eq(run_requests(assay_model_ref(), &m->config, &m->weights, &plan, &request, 1, &error), ASSAY_OK, "%s",
               error.text);
}

/* Written out and read again: the same bits, and the same ids as from the configuration in YAML. */
Test(files, flat_and_yaml) {
  static const char yaml[] = "arch: asynct\nlayers: 2\nhidden: 32\nheads: 2\nkv_heads: 1\nhead_size: 16\nrotated: 16\n"
                             "intermediate: 48\nvocab: 50\nmax_pos: 64\nseed: 9\n";
  const assay_model_config c = small_asynct();
  model_file seeded, flat;
  int32_t a[8], b[8];
  cr_assert_eq(model_open(files_put("m.yaml", yaml, sizeof yaml - 1), &seeded, &error), ASSAY_OK, "%s", error.text);
  write_flat(&c, &seeded.weights, config_text);
  cr_assert_eq(model_open(files_path("manifest.json"), &flat, &error), ASSAY_OK, "%s", error.text);
  assay_weight_spec spec;
  for (int32_t i = 0; assay_model_weight_spec(&c, i, &spec); ++i) {
    const int64_t count = spec.shape[0] * (spec.rank > 1 ? spec.shape[1] : 1);
    cr_expect_eq(memcmp(seeded.weights.tensor[i].data, flat.weights.tensor[i].data,
                        (size_t)(count * assay_dtype_size(spec.dtype))),
                 0, "%s", spec.name);
  }
  ids_of(&seeded, a);
  ids_of(&flat, b);
  cr_expect_arr_eq(a, b, sizeof a);
  model_file_free(&seeded);
  model_file_free(&flat);
}

/* Every field comes back as it was: the configurations are the same text. */
static void same_config(const assay_model_config *a, const assay_model_config *b) {
  test_output first, second;
  output_open(&first);
  model_config_write(first.stream, a);
  output_close(&first);
  output_open(&second);
  model_config_write(second.stream, b);
  output_close(&second);
  cr_expect_str_eq(first.text, second.text);
  output_free(&first);
  output_free(&second);
}

Test(files, flat_written) {
  for (int number = 0; number < REF_MODELS; ++number) {
    const assay_model_config c = small_model(number);
    assay_model_weights w;
    model_file back;
    assay_weight_spec spec;
    cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
    cr_assert_eq(assay_model_seed(&c, 9, &w, &error), ASSAY_OK);
    cr_assert_eq(model_file_write(files_folder(), &c, &w, &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(model_file_flat(files_path("model.json"), &back, &error), ASSAY_OK, "%d: %s", number, error.text);
    same_config(&c, &back.config);
    for (int32_t i = 0; assay_model_weight_spec(&c, i, &spec); ++i) {
      const int64_t count = spec.shape[0] * (spec.rank > 1 ? spec.shape[1] : 1);
      const size_t bytes = (size_t)(count * assay_dtype_size(spec.dtype));
      cr_expect_eq(memcmp(w.tensor[i].data, back.weights.tensor[i].data, bytes), 0, "%d: %s", number, spec.name);
    }
    model_file_free(&back);
    assay_model_weights_free(&w);
  }
}

/* Each kind of field as text. */
Test(files, config_written) {
  assay_model_config c = assay_model_production(ASSAY_QWEN3), read = c;
  c.layers = 7, c.eps = 0.1, c.rope_style = ASSAY_ROPE_INTERLEAVED, c.rope_kind = ASSAY_ROPE_YARN;
  c.tied_head = false, c.kv_dtype = ASSAY_E4M3, c.sparse = (assay_model_layers){{5}};
  test_output text;
  output_open(&text);
  model_config_write(text.stream, &c);
  output_close(&text);
  static const char *const wanted[] = {"\"arch\":\"qwen3\",\"layers\":7,",
                                       "\"eps\":0.10000000000000001,",
                                       "\"rope_style\":\"interleaved\"",
                                       "\"rope_kind\":\"yarn\"",
                                       "\"tied_head\":false",
                                       "\"kv_dtype\":\"e4m3\"",
                                       "\"sparse\":\"0 2\"",
                                       "\"windowed\":\"none\""};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i)
    cr_expect_not_null(strstr(text.text, wanted[i]), "%s: %s", wanted[i], text.text);
  cr_expect_eq(model_config_set(&read, "sparse", "0 2", &error), ASSAY_OK);
  cr_expect_eq(memcmp(&read.sparse, &c.sparse, sizeof c.sparse), 0);
  output_free(&text);
}

Test(files, flat_nowhere) {
  const assay_model_config c = small_model(1);
  assay_model_weights w;
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  cr_expect_eq(model_file_write("/nowhere", &c, &w, &error), ASSAY_ERR_IO);
  cr_expect_not_null(strstr(error.text, "/nowhere/model.json: "), "%s", error.text);
  assay_model_weights_free(&w);
}

Test(files, flat_that_lies) {
  static const struct {
    const char *old, *fresh, *says;
  } bad[] = {
      {"\"layers\": 2", "\"layers\": 3", "layers.2.attn.pre.alpha: found no such tensor"},
      {"\"layers\": 2", "\"layers\": 1", "tensors: found"},
      {"\"layers\": 2", "\"layers\": 2.5", "layers: found '2.5', allowed a whole number"},
      {"\"layers\": 2", "\"layers\": 0", "layers: found 0"},
      {"\"layers\": 2, ", "", "config: layers: found none"},
      {"\"layers\": 2", "\"layers\": [2]", "config: layers: found no number"},
      {"\"hidden\": 32", "\"hidden\": 40", "embed.w: shape: found [50, 32], allowed [50, 40]"},
      {"\"arch\": \"asynct\", ", "", "config: arch: found none"},
      {"\"asynct\"", "\"mamba\"", "arch: found 'mamba'"},
      {"\"vocab\"", "\"vocabulary\"", "config: vocab: found none"},
      {"\"max_pos\": 64", "\"max_pos\": 64, \"colour\": 1", "field 'colour' is unknown"},
      {"\"config\"", "\"confit\"", "config: found none"},
      {"\"tensors\"", "\"tensor\"", "tensors: found none"},
      {"\"weights.bin\"", "\"../weights.bin\"", "data: found '../weights.bin'"},
      {"\"weights.bin\"", "\"/etc/passwd\"", "data: found '/etc/passwd'"},
      {"\"weights.bin\"", "\"other.bin\"", "cannot be read"},
      {"\"weights.bin\"", "7", "data: found no text"},
      {"\"shape\": [50, 32]", "\"shape\": [50, -32]", "embed.w: shape: found '-32'"},
      {"\"shape\": [50, 32]", "\"shape\": [50, 3e1]", "embed.w: shape: found '3e1'"},
      {"\"shape\": [50, 32]", "\"shape\": [4611686018427387904, 4]", "embed.w: shape: found '4611686018427387904'"},
      {"\"shape\": [50, 32]", "\"shape\": [1, 1, 1, 1, 1, 50, 32]", "embed.w: shape: found more than 6 axes"},
      {"\"shape\": [50, 32]", "\"shape\": [50, 3200]", "embed.w: offset: found 0 with 320000 bytes"},
      {"\"shape\": [50, 32], ", "", "embed.w: shape: found nothing"},
      {"\"shape\": [50, 32]", "\"shape\": [32, 50]", "embed.w: shape: found [32, 50], allowed [50, 32]"},
      {"\"offset\": 0", "\"offset\": 1", "embed.w: offset: found 1, allowed multiples of the 2 bytes"},
      {"\"offset\": 0", "\"offset\": 99999999", "embed.w: offset: found 99999999"},
      {"\"offset\": 0", "\"offset\": -2", "embed.w: offset: found -2"},
      {"\"offset\": 0", "\"offset\": 9223372036854775807", "embed.w: offset: found 9223372036854775807"},
      {"\"offset\": 0", "\"offset\": 9223372036854775808", "embed.w: offset: found no whole number"},
      {"\"offset\": 0", "\"offset\": 0, \"nbytes\": 6400", "embed.w: nbytes: found 6400, allowed 3200"},
      {"\"offset\": 0", "\"offset\": 0, \"bytes\": 3200", "embed.w: found key 'bytes'"},
      {"\"dtype\": \"bf16\", \"shape\"", "\"dtype\": \"f16\", \"shape\"", "embed.w: dtype: found f16, allowed bf16"},
      {"\"dtype\": \"bf16\", \"shape\"", "\"dtype\": \"f8\", \"shape\"", "embed.w: dtype: found 'f8'"},
      {"\"name\": \"embed.w\"", "\"name\": \"final.alpha\"", "final.alpha: found twice"},
      {"\"name\": \"embed.w\"", "\"name\": \"\"", "name: found 0 bytes"},
      {"\"name\": \"embed.w\"", "\"name\": 4", "entry 0: name: found none"},
      {"]}\n", "]", "JSON: line 50, column"},
  };
  const assay_model_config c = small_asynct();
  assay_model_weights w;
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  cr_assert_eq(assay_model_seed(&c, 9, &w, &error), ASSAY_OK);
  write_flat(&c, &w, config_text);
  assay_model_weights_free(&w);
  test_bytes good = files_read(files_path("manifest.json")), data = files_read(files_path("weights.bin"));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    test_bytes text = {malloc(good.size + 1), good.size};
    memcpy(text.at, good.at, good.size + 1);
    cr_assert(files_replace(&text, bad[i].old, bad[i].fresh), "%s", bad[i].old);
    refused(files_put("bad.json", text.at, text.size), bad[i].says);
    files_free(&text);
  }
  (void)files_put("weights.bin", data.at, data.size - 1);
  refused(files_path("manifest.json"), "where the data end");
  files_free(&good);
  files_free(&data);
}

Test(files, mingpt_names) {
  model_file m;
  cr_assert_eq(model_open(NANO "manifest.json", &m, &error), ASSAY_OK, "%s", error.text);
  cr_expect(m.config.arch == ASSAY_GPT2 && m.config.layers == 3 && m.config.vocab == 3 && !m.config.tied_head &&
            m.config.max_pos == 11 && m.config.head_size == 16);
  const float *up = weight(&m, "layers.1.mlp.up.w")->data;
  cr_expect_eq((const unsigned char *)up - m.file.bytes, 154176, "h.1.mlp.c_fc.weight");
  model_file_free(&m);
  (void)files_copy(NANO "weights_f32.bin", "weights_f32.bin");
  test_bytes text = files_read(NANO "manifest.json");
  cr_assert(files_replace(&text, "\"n_head\": 3", "\"n_head\": 5"));
  refused(files_put("m.json", text.at, text.size), "config: n_embd: found 48, allowed multiples of n_head = 5");
  cr_assert(files_replace(&text, "\"n_head\": 5", "\"n_head\": -3"));
  refused(files_put("m.json", text.at, text.size), "config: n_head: found no whole number");
  files_free(&text);
}

/* ---- safetensors ------------------------------------------------------------------------------------- */

Test(files, safetensors) {
  tensor_file f;
  test_bytes file = files_read(NORM);
  cr_assert_eq(tensor_file_safetensors(NORM, &f, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(f.count, 2, "metadata is no tensor");
  const file_tensor *y = tensor_file_find(&f, "output");
  cr_assert_not_null(y);
  cr_expect(y->dtype == ASSAY_BF16 && y->rank == 3 && y->shape[2] == 1024 && y->count == 16384);
  cr_expect_eq(memcmp(y->data, file.at + file.size - 32768, 32768), 0);
  cr_expect_null(tensor_file_find(&f, "__metadata__"));
  tensor_file_free(&f);
  files_free(&file);
}

static void unsafe(const test_bytes *file, const char *says) {
  tensor_file f;
  error.text[0] = '\0';
  cr_expect_eq(tensor_file_safetensors(files_put("bad.safetensors", file->at, file->size), &f, &error),
               ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, says), "wanted %s: %s", says, error.text);
  cr_expect(f.bytes == NULL && f.tensor == NULL);
}

Test(files, safetensors_that_lie) {
  static const struct {
    const char *old, *fresh, *says;
  } bad[] = {{"[0,32768]", "[0,32766]", "input_hidden_states: nbytes: found 32766, allowed 32768"},
             {"[0,32768]", "[1,32769]", "output: offset: found 32768, where the bytes of input_hidden_states"},
             {"[0,32768]", "[9,00000]", "JSON"},
             {"[0,32768]", "[32768,0]", "input_hidden_states: data_offsets: found no two ascending"},
             {"[0,32768]", "\"0,3276\" ", "input_hidden_states: data_offsets: found no two"},
             {"[32768,65536]", "[32770,65538]", "output: offset: found 32770 with 32768 bytes"},
             {"[32768,65536]", "[65538,98306]", "output: offset: found 65538"},
             {"[2,8,1024]", "[2,8,1023]", "input_hidden_states: nbytes: found 32768, allowed 32736"},
             {"\"dtype\"", "\"dtypo\"", "input_hidden_states: dtype: found no text"}};
  test_bytes file = files_read(NORM);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    test_bytes copy = {malloc(file.size + 1), file.size};
    memcpy(copy.at, file.at, file.size + 1);
    /* Text between the length and the data: of the same size. */
    unsigned char *found = NULL;
    for (size_t at = 8; at < 400 && found == NULL; ++at)
      if (memcmp(copy.at + at, bad[i].old, strlen(bad[i].old)) == 0) found = copy.at + at;
    cr_assert(found != NULL && strlen(bad[i].old) == strlen(bad[i].fresh), "%s", bad[i].old);
    memcpy(found, bad[i].fresh, strlen(bad[i].fresh));
    unsafe(&copy, bad[i].says);
    files_free(&copy);
  }
  for (size_t size = 0; size < 300; size += 7) {
    const test_bytes cut = {file.at, size};
    unsafe(&cut, size < 272 ? "header length: found" : "offset");
  }
  memset(file.at, 0xFF, 8);
  unsafe(&file, "header length: found 18446744073709551615");
  files_free(&file);
}

/* Tensors beside the needed ones never cost the file: other types, many axes, long names, odd places. */
Test(files, safetensors_with_others) {
  enum { LONG = 300 };
  static char header[2048];
  static unsigned char all[4096];
  char name[LONG + 1];
  memset(name, 'n', LONG);
  name[LONG] = '\0';
  const int size = snprintf(header, sizeof header,
                            "{\"b\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
                            "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]},"
                            "\"e\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[11,12]},"
                            "\"f\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[11,12]},"
                            "\"m\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[12,16]},"
                            "\"\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[12,16]},"
                            "\"%s\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[16,16]}}",
                            name);
  const float value[2] = {1.5f, -2};
  all[0] = (unsigned char)(size & 0xFF);
  all[1] = (unsigned char)(size >> 8);
  memcpy(all + 8, header, (size_t)size);
  memcpy(all + 8 + size + 3, value, sizeof value);
  tensor_file f;
  const file_tensor *found = NULL;
  error.text[0] = '\0';
  cr_assert_eq(tensor_file_safetensors(files_put("a.safetensors", all, (size_t)size + 24), &f, &error), ASSAY_OK, "%s",
               error.text);
  cr_expect_eq(f.count, 7);
  const int64_t two = 2, one = 1;
  cr_assert_eq(tensor_file_get(&f, "x", ASSAY_F32, 1, &two, &found, &error), ASSAY_OK, "%s", error.text);
  cr_expect(((const float *)found->data)[0] == 1.5f && ((const float *)found->data)[1] == -2, "at an odd place");
  cr_expect_not_null(tensor_file_find(&f, name));
  static const struct {
    const char *name, *says;
  } unread[] = {{"b", "b: found dtype BOOL, allowed F32"},
                {"e", "e: found dtype F8_E8M0, allowed"},
                {"f", "f: found dtype F4, allowed"},
                {"m", "m: found 7 axes, allowed"}};
  for (size_t i = 0; i < sizeof unread / sizeof *unread; ++i) {
    error.text[0] = '\0';
    cr_expect_eq(tensor_file_get(&f, unread[i].name, ASSAY_F32, 1, &one, &found, &error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, unread[i].says), "wanted %s: %s", unread[i].says, error.text);
  }
  tensor_file_free(&f);
}

/* Pipes, devices and folders are refused by name, at once. */
Test(files, kinds, .timeout = 10) {
  static const struct {
    const char *path, *says;
  } bad[] = {{"/tmp", "/tmp: found a folder, allowed a regular file"},
             {"/dev/null", "/dev/null: found a device, allowed"},
             {"/dev/zero", "/dev/zero: found a device, allowed"}};
  FILE *file = NULL;
  int64_t size = 0;
  char link_path[300];
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    error.text[0] = '\0';
    cr_expect_eq(file_open(bad[i].path, &file, &size, &error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, bad[i].says), "wanted %s: %s", bad[i].says, error.text);
    cr_expect_null(file);
  }
  (void)snprintf(link_path, sizeof link_path, "%s", files_path("zero"));
  cr_assert_eq(symlink("/dev/zero", link_path), 0);
  error.text[0] = '\0';
  cr_expect_eq(file_open(link_path, &file, &size, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "zero: found a device"), "%s", error.text);
  (void)unlink(link_path);
  cr_assert_eq(mkfifo(link_path, 0600), 0);
  error.text[0] = '\0';
  cr_expect_eq(file_open(link_path, &file, &size, &error), ASSAY_ERR_INPUT, "a pipe that nobody writes");
  cr_expect_not_null(strstr(error.text, "zero: found a pipe"), "%s", error.text);
  refused(link_path, "found a pipe, allowed a regular file");
  (void)unlink(link_path);
}

/* ---- YAML, and what is asked of a model --------------------------------------------------------------- */

Test(files, yaml_that_is_wrong) {
  static const struct {
    const char *text, *says;
  } bad[] = {{"layers: 2\n", "m.yaml:1:1: arch: found none"},
             {"arch: rnn\n", "arch: found 'rnn', allowed gpt2, qwen3, asynct"},
             {"arch: qwen3\nlayers: two\n", "m.yaml:2:9: layers: found 'two'"},
             {"arch: qwen3\nwidth: 2\n", "m.yaml:2:8: field 'width' is unknown"},
             {"arch: qwen3\nlayers: [2]\n", "m.yaml:2:9: layers: found a list or map"},
             {"arch: qwen3\n[layers]: 2\n", "m.yaml:2:1: found a list as a key, allowed a word"},
             {"arch: qwen3\nlayers: 2\nlayers: 3\n", "m.yaml:3:1: layers: found twice, allowed once"},
             {"arch: qwen3\nseed: -1\n", "m.yaml:2:7: seed: found '-1'"},
             {"arch: qwen3\nhead_size: 12\n", "head_size: found 12, allowed multiples of 8"},
             {"arch: qwen3\neps: nan\n", "eps: found 'nan'"},
             {"arch: qwen3\nkv_dtype: i32\n", "kv_dtype: found 'i32'"},
             {"- arch\n", "found no map"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
    refused(files_put("m.yaml", bad[i].text, strlen(bad[i].text)), bad[i].says);
}

Test(files, prompts_that_are_wrong) {
  static const struct {
    int32_t prompt[3];
    int64_t count, steps;
    const char *says;
  } bad[] = {{{1, 512, 3}, 3, 4, "ids: request 0: found 512 at place 1, allowed 0 to 511"},
             {{1, 2, -3}, 3, 4, "ids: request 0: found -3 at place 2"},
             {{1, 2, 3}, 0, 4, "ids: request 0: found none"},
             {{1, 2, 3}, 3, 0, "steps: request 0: found 0"},
             {{1, 2, 3}, 3, 511, "steps: request 0: found 511 with 3 ids, allowed 512 positions"}};
  model_file m;
  int32_t ids[4] = {-7, -7, -7, -7};
  cr_assert_eq(model_open(STORIES, &m, &error), ASSAY_OK, "%s", error.text);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    run_request request = {.prompt = bad[i].prompt, .prompt_count = bad[i].count, .steps = bad[i].steps, .ids = ids};
    const run_plan plan = {.chunk = 0};
    error.text[0] = '\0';
    cr_expect_eq(run_requests(assay_model_ref(), &m.config, &m.weights, &plan, &request, 1, &error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, bad[i].says), "wanted %s: %s", bad[i].says, error.text);
    cr_expect(ids[0] == -7 && ids[3] == -7, "nothing is written");
  }
  error.text[0] = '\0';
  cr_expect_null(model_backend("tpu", &error));
  cr_expect_not_null(strstr(error.text, "--device: found 'tpu', allowed: ref"), "%s", error.text);
  model_file_free(&m);
}

Test(files, sampler_that_is_wrong) {
  static const struct {
    const char *text, *says;
  } bad[] = {{"top_p=0", "top_p: found '0', allowed a number above 0, up to 1"},
             {"top_p=1.0001", "top_p: found '1.0001'"},
             {"top_p=-1", "top_p: found '-1'"},
             {"top_p=nan", "top_p: found 'nan'"},
             {"min_p=2", "min_p: found '2'"},
             {"top_k=-1", "top_k: found '-1'"},
             {"top_k=1.5", "top_k: found '1.5', allowed a whole number"},
             {"temperature=-0.5", "temperature: found '-0.5'"},
             {"repetition=0", "repetition: found '0'"},
             {"seed=x", "seed: found 'x'"},
             {"top_q=1", "found 'top_q', allowed: temperature"},
             {"greedy", "found 'greedy', allowed: name=value"}};
  sample_options o;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    error.text[0] = '\0';
    cr_expect_eq(sample_parse(bad[i].text, &o, &error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, bad[i].says), "wanted %s: %s", bad[i].says, error.text);
  }
  cr_assert_eq(sample_parse("temperature=0.5,top_k=40,top_p=1,seed=7", &o, &error), ASSAY_OK);
  cr_expect(o.temperature == 0.5 && o.top_k == 40 && o.top_p == 1 && o.seed == 7 && o.repetition == 1 && o.min_p == 0);
}
