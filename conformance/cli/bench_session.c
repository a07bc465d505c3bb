/* bench_session.c: the models of scenarios and traces, and the file of their results. */
#include "bench_session.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "conformance/models/models.h"
#include "conformance/text/text.h"
#include "core/registry.h"

/* ---- a model ----------------------------------------------------------------------------------------- */

static assay_status open_production(assay_model_arch arch, bool narrow, uint64_t seed, bench_model *made,
                                    assay_error *error) {
  made->config = assay_model_production(arch);
  made->config.fp8_weights = narrow;
  assay_status status = assay_model_weights_alloc(&made->config, &made->weights, error);
  return status == ASSAY_OK ? assay_model_seed(&made->config, seed, &made->weights, error) : status;
}

static assay_status open_file(const char *name, bool narrow, bench_model *made, assay_error *error) {
  assay_status status = model_open(name, &made->file, error);
  if (status != ASSAY_OK) return status;
  made->of_file = true;
  if (narrow) status = model_open_narrow(&made->file, error);
  made->config = made->file.config;
  made->weights = made->file.weights;
  return status;
}

assay_status bench_model_open(const char *name, const cli_options *given, const bench_limits *limits, bench_model *made,
                              assay_error *error) {
  static _Thread_local char usual[4096];
  (void)snprintf(usual, sizeof usual, "%.4000s/expected.jsonl", folder_of_bench());
  const char *tokens = given->expected != NULL ? given->expected : usual;
  *made = (bench_model){.of_file = false};
  int32_t arch = 0;
  const int32_t end = ASSAY_ASYNCT + 1; /* larger ones have no place in one device's memory */
  while (arch < end && strcmp(name, assay_model_arch_name((assay_model_arch)arch)) != 0)
    ++arch;
  const bool narrow = given->weights != NULL;
  const assay_status status = arch < end ? open_production((assay_model_arch)arch, narrow, given->seed, made, error)
                                         : open_file(name, narrow, made, error);
  made->options = (assay_model_options){given->forms.item,     given->forms.count,         given->variants.item,
                                        given->variants.count, (int32_t)given->short_tail, given->invariant};
  made->setup = (scenario_setup){.device = given->device,
                                 .expected_file = made->of_file || narrow ? NULL : tokens,
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

assay_status bench_session_open(const cli_options *given, bench_session *made, assay_error *error) {
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

int bench_session_close(bench_session *s, const cli_options *given, assay_status status, const assay_error *error) {
  if (s->jsonl != NULL) {
    if (status == ASSAY_OK) rows_end(s->jsonl, s->there, s->missing, 0, 0);
    const bool bad = ferror(s->jsonl) != 0;
    if ((fclose(s->jsonl) != 0 || bad) && status == ASSAY_OK) {
      (void)fprintf(stderr, "assay: --jsonl: %s: not written\n", text_shown(given->jsonl));
      return EXIT_BAD;
    }
  }
  if (status != ASSAY_OK) return cli_leave(status, error);
  return cli_written(s->missing > 0 ? EXIT_BAD : s->there > 0 ? EXIT_GOOD : EXIT_NOTHING);
}
