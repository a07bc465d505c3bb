/* bench_words.c: the command line of scenarios and traces, their models, their file. */
#include "bench_words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "conformance/model_open.h"
#include "conformance/threads.h"
#include "core/registry.h"

/* ---- words ------------------------------------------------------------------------------------------- */

static assay_status whole(const char *name, const char *value, int64_t least, int64_t *out, assay_error *error) {
  char *end = NULL;
  errno = 0;
  *out = strtoll(value, &end, 10);
  if (end == value || *end != '\0' || errno != 0 || *out < least || *out > (int64_t)1 << 40)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: an integer from %lld", name, value,
                      (long long)least);
  return ASSAY_OK;
}

static assay_status push(const char **list, int32_t *count, int32_t most, const char *name, const char *value,
                         assay_error *error) {
  if (*count == most) return assay_fail(error, ASSAY_ERR_INPUT, "%s: given more than %d times", name, (int)most);
  list[(*count)++] = value;
  return ASSAY_OK;
}

/* "0.4,1,1.6" */
static assay_status scales(bench_words *w, const char *name, const char *value, assay_error *error) {
  const char *at = value;
  for (w->scales = 0; w->scales < BENCH_WORDS;) {
    char *end = NULL;
    const double one = strtod(at, &end);
    if (end == at || !(one > 0 && one <= 1000) || (*end != ',' && *end != '\0')) break;
    w->scale[w->scales++] = one;
    if (*end == '\0') return ASSAY_OK;
    at = end + 1;
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: up to %d numbers above 0, with commas", name,
                    value, BENCH_WORDS);
}

static assay_status take(bench_words *w, const char *name, const char *value, assay_error *error) {
  int64_t seed = 0;
  assay_status status = ASSAY_OK;
  if (strcmp(name, "--model") == 0) return push(w->model, &w->models, BENCH_MODELS, name, value, error);
  if (strcmp(name, "--form") == 0) return push(w->form, &w->forms, BENCH_WORDS, name, value, error);
  if (strcmp(name, "--variant") == 0) return push(w->variant, &w->variants, BENCH_WORDS, name, value, error);
  if (strcmp(name, "--scales") == 0) return scales(w, name, value, error);
  if (strcmp(name, "--part") == 0) return whole(name, value, 1, &w->part, error);
  if (strcmp(name, "--requests") == 0) return whole(name, value, 1, &w->requests, error);
  if (strcmp(name, "--blocks") == 0) return whole(name, value, 1, &w->blocks, error);
  if (strcmp(name, "--batch") == 0) return whole(name, value, 1, &w->batch, error);
  if (strcmp(name, "--tokens") == 0) return whole(name, value, 1, &w->tokens, error);
  if (strcmp(name, "--short-tail") == 0) {
    status = whole(name, value, 1, &w->short_tail, error);
    if (status == ASSAY_OK && w->short_tail > ASSAY_MODEL_SHORT_TAIL)
      status =
          assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: up to %d", name, value, ASSAY_MODEL_SHORT_TAIL);
    return status;
  }
  if (strcmp(name, "--length") == 0) return whole(name, value, 2, &w->length, error);
  if (strcmp(name, "--seed") == 0) {
    status = whole(name, value, 0, &seed, error);
    w->seed = (uint64_t)seed;
    return status;
  }
  if (strcmp(name, "--seconds") == 0) {
    char *end = NULL;
    w->seconds = strtod(value, &end);
    if (end != value && *end == '\0' && w->seconds > 0 && w->seconds < 1e9) return ASSAY_OK;
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: a number above 0", name, value);
  }
  if (strcmp(name, "--device") == 0) {
    w->device = value;
    if (strcmp(value, "cuda") == 0 || strcmp(value, "simt") == 0) return ASSAY_OK;
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', allowed: cuda, simt", name, value);
  }
  if (strcmp(name, "--expected") == 0)
    w->expected = value;
  else
    w->jsonl = value;
  return ASSAY_OK;
}

assay_status bench_words_read(int argc, char **argv, const char *allowed, bench_words *given, assay_error *error) {
  *given = (bench_words){.device = "simt", .seed = 1, .part = 1, .expected = ASSAY_BENCH_DIR "/expected.jsonl"};
  assay_status status = ASSAY_OK;
  for (int i = 0; i < argc && status == ASSAY_OK; ++i) {
    if (argv[i][0] != '-') {
      status = push(given->word, &given->words, BENCH_WORDS, "arguments", argv[i], error);
      continue;
    }
    char name[32], padded[40];
    const char *equals = strchr(argv[i], '=');
    (void)snprintf(name, sizeof name, "%.*s", equals != NULL ? (int)(equals - argv[i]) : 31, argv[i]);
    (void)snprintf(padded, sizeof padded, " %s ", name);
    if (strstr(allowed, padded) == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "option '%s' is unknown here, allowed:%s", argv[i], allowed);
    const char *value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
    if (value == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: needs a value", name);
    status = take(given, name, value, error);
  }
  return status;
}

/* ---- a model ----------------------------------------------------------------------------------------- */

static assay_status open_production(assay_model_arch arch, uint64_t seed, bench_model *made, assay_error *error) {
  made->config = assay_model_production(arch);
  assay_status status = assay_model_weights_alloc(&made->config, &made->weights, error);
  return status == ASSAY_OK ? assay_model_seed(&made->config, seed, &made->weights, error) : status;
}

static assay_status open_file(const char *name, bench_model *made, assay_error *error) {
  const assay_status status = model_open(name, &made->file, error);
  if (status != ASSAY_OK) return status;
  made->of_file = true;
  made->config = made->file.config;
  made->weights = made->file.weights;
  return ASSAY_OK;
}

assay_status bench_model_open(const char *name, const bench_words *given, const bench_limits *limits, bench_model *made,
                              assay_error *error) {
  *made = (bench_model){.of_file = false};
  int32_t arch = 0;
  while (arch < ASSAY_ARCH_COUNT && strcmp(name, assay_model_arch_name((assay_model_arch)arch)) != 0)
    ++arch;
  const assay_status status = arch < ASSAY_ARCH_COUNT
                                  ? open_production((assay_model_arch)arch, given->seed, made, error)
                                  : open_file(name, made, error);
  made->options =
      (assay_model_options){given->form, given->forms, given->variant, given->variants, (int32_t)given->short_tail};
  made->setup = (scenario_setup){.device = given->device,
                                 .expected_file = made->of_file ? NULL : given->expected,
                                 .config = &made->config,
                                 .weights = &made->weights,
                                 .model = &made->options,
                                 .seed = given->seed,
                                 .limits = limits,
                                 .max_tokens = given->tokens};
  return status;
}

void bench_model_close(bench_model *m) {
  if (m->of_file)
    model_file_free(&m->file);
  else
    assay_model_weights_free(&m->weights);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

assay_status bench_session_open(const bench_words *given, bench_session *made, assay_error *error) {
  const assay_device *device = assay_device_find(given->device);
  assay_device_info info;
  memset(&info, 0, sizeof info);
  *made = (bench_session){.jsonl = NULL};
  if (device == NULL)
    return assay_fail(error, ASSAY_ERR_NO_DEVICE, "--device: found '%s', this build has: %s", given->device,
                      assay_device_names());
  assay_status status = device->open(error);
  if (status == ASSAY_OK) status = device->info(&info, error);
  if (status == ASSAY_OK) status = bench_measure(device, &made->limits, error);
  if (status != ASSAY_OK) return status;
  threads_use((int32_t)sysconf(_SC_NPROCESSORS_ONLN));
  (void)printf("%s: %s; commit %s\n", given->device, info.name, report_commit());
  if (given->jsonl == NULL) return ASSAY_OK;
  made->jsonl = fopen(given->jsonl, "w");
  if (made->jsonl == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "--jsonl: %s: %s", given->jsonl, strerror(errno));
  const bench_options options = bench_usual();
  const bench_head head = {given->device, report_commit(), &info, &options, given->seed};
  rows_head(made->jsonl, &head);
  rows_limits(made->jsonl, &made->limits);
  return ASSAY_OK;
}

int bench_session_close(bench_session *s, const bench_words *given, assay_status status, const assay_error *error) {
  if (s->jsonl != NULL) {
    if (status == ASSAY_OK) rows_end(s->jsonl, s->there, s->missing, 0, 0);
    const bool bad = ferror(s->jsonl) != 0;
    if ((fclose(s->jsonl) != 0 || bad) && status == ASSAY_OK) {
      (void)fprintf(stderr, "assay: --jsonl: %s: not written\n", given->jsonl);
      return EXIT_BAD;
    }
  }
  if (status != ASSAY_OK) return cli_leave(status, error);
  if (fflush(stdout) != 0 || ferror(stdout)) return EXIT_BAD;
  return s->missing > 0 ? EXIT_BAD : s->there > 0 ? EXIT_GOOD : EXIT_NOTHING;
}
