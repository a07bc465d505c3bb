/* page_read.c: lines of JSON become the data of the page. */
#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"
#include "page_parts.h"

static void copy(char *to, size_t size, const json_value *line, const char *key) {
  (void)snprintf(to, size, "%s", json_text(line, key, ""));
}

/* Returns room for one more element; NULL: no memory. */
static void *more(void **list, int64_t *count, size_t size) {
  if ((*count & (*count - 1)) == 0) {
    void *grown = realloc(*list, (size_t)(*count > 0 ? 2 * *count : 1) * size);
    if (grown == NULL) return NULL;
    *list = grown;
  }
  void *made = (char *)*list + (size_t)*count * size;
  memset(made, 0, size);
  ++*count;
  return made;
}

/* Writes the words of a descriptor that name the shapes of an attention; a list becomes its beginning and its length.
 */
static void shape_of(const char *descriptor, char *text, size_t size) {
  static const char *const key[] = {" mode=", " kv_len=", " new=", " H=", " H_kv=", " D=", " dtype=", " kv_dtype="};
  text[0] = '\0';
  for (size_t i = 0; i < sizeof key / sizeof key[0]; ++i) {
    const char *at = strstr(descriptor, key[i]);
    if (at == NULL) continue;
    at += strlen(key[i]);
    const size_t length = strcspn(at, " ");
    size_t count = 1, used = strlen(text);
    for (size_t c = 0; c < length; ++c)
      count += at[c] == ',';
    (void)snprintf(text + used, size - used, "%s%.*s x%zu", key[i], (int)(length < 24 ? length : 24), at, count);
  }
}

static bool add_row(page_data *d, const json_value *line, bool peer) {
  page_row *r = more((void **)&d->row, &d->rows, sizeof *r);
  if (r == NULL) return false;
  copy(r->op, sizeof r->op, line, "op");
  copy(r->variant, sizeof r->variant, line, peer ? "peer" : "variant");
  copy(r->name, sizeof r->name, line, "name");
  copy(r->suite, sizeof r->suite, line, "suite");
  copy(r->mode, sizeof r->mode, line, "mode");
  copy(r->message, sizeof r->message, line,
       peer ? (json_member(line, "failed") != NULL ? "failed" : "unsupported") : "message");
  copy(r->by, sizeof r->by, line, "limit_by");
  shape_of(json_text(line, "case", ""), r->shape, sizeof r->shape);
  r->peer = peer;
  r->file = (int32_t)d->runs - 1;
  r->median = json_number(line, "median_us", 0);
  r->low = json_number(line, "low_us", 0);
  r->high = json_number(line, "high_us", 0);
  r->limit = json_number(line, "limit_us", 0);
  r->bytes = json_number(line, "bytes", 0);
  r->flops = json_number(line, "flops", 0);
  r->live = json_number(line, "live_keys", -1);
  return true;
}

static bool add_scenario(page_data *d, const json_value *line) {
  page_scenario *s = more((void **)&d->scenario, &d->scenarios, sizeof *s);
  if (s == NULL) return false;
  copy(s->name, sizeof s->name, line, "name");
  copy(s->model, sizeof s->model, line, "model");
  copy(s->message, sizeof s->message, line, "message");
  s->file = (int32_t)d->runs - 1;
  s->batch = json_integer(line, "batch", 0);
  s->prompt = json_integer(line, "prompt", 0);
  s->output = json_integer(line, "output", 0);
  s->calls = json_integer(line, "calls_a_step", 0);
  s->wall = json_number(line, "wall_ms", 0);
  s->low = json_number(line, "wall_low_ms", 0);
  s->high = json_number(line, "wall_high_ms", 0);
  s->prefill = json_number(line, "prefill_ms", 0);
  s->step = json_number(line, "step_ms", 0);
  s->layer = json_number(line, "layer_us", 0);
  s->span = json_number(line, "span_us", 0);
  s->rate = json_number(line, "tokens_s", 0);
  s->limit = json_number(line, "limit_ms", 0);
  s->live = json_number(line, "live_keys", 0);
  s->published = 1e3 * json_number(line, "published_s", 0);
  const json_value *calls = json_member(line, "calls");
  for (const json_value *c = calls != NULL ? calls->child : NULL; c != NULL && s->call_count < PAGE_CALLS;
       c = c->next) {
    page_call *call = &s->call[s->call_count++];
    copy(call->op, sizeof call->op, c, "op");
    copy(call->variant, sizeof call->variant, c, "variant");
    call->us = json_number(c, "us", 0);
    call->calls = json_integer(c, "calls", 0);
    call->in_graph = json_member(c, "graph_us") != NULL;
    call->graph_us = json_number(c, "graph_us", 0);
  }
  return true;
}

static bool add_scenario_peer(page_data *d, const json_value *line) {
  page_scenario_peer *p = more((void **)&d->scenario_peer, &d->scenario_peers, sizeof *p);
  if (p == NULL) return false;
  copy(p->peer, sizeof p->peer, line, "peer");
  copy(p->name, sizeof p->name, line, "scenario");
  copy(p->model, sizeof p->model, line, "model");
  copy(p->message, sizeof p->message, line, json_member(line, "failed") != NULL ? "failed" : "unsupported");
  p->file = (int32_t)d->runs - 1;
  p->wall = json_number(line, "wall_ms", 0);
  return true;
}

static void points(const json_value *line, const char *key, double *to) {
  const json_value *p = json_member(line, key);
  to[0] = json_number(p, "p50", 0);
  to[1] = json_number(p, "p90", 0);
  to[2] = json_number(p, "p99", 0);
}

static bool add_online(page_data *d, const json_value *line) {
  page_online *o = more((void **)&d->online, &d->onlines, sizeof *o);
  if (o == NULL) return false;
  copy(o->trace, sizeof o->trace, line, "trace");
  copy(o->model, sizeof o->model, line, "model");
  copy(o->message, sizeof o->message, line, "message");
  o->file = (int32_t)d->runs - 1;
  o->scale = json_number(line, "scale", 0);
  o->seconds = json_number(line, "seconds", 0);
  o->offered = json_number(line, "offered_rate", 0);
  o->served = json_number(line, "request_rate", 0);
  o->output = json_number(line, "output_tokens_s", 0);
  o->prompt = json_number(line, "prompt_tokens_s", 0);
  const double prompts = json_number(line, "prompt_tokens", 0);
  o->hit = prompts > 0 ? json_number(line, "hit_tokens", 0) / prompts : 0;
  o->requests = json_integer(line, "requests", 0);
  o->preempted = json_integer(line, "preempted", 0);
  points(line, "ttft_ms", o->ttft);
  points(line, "tpot_ms", o->tpot);
  points(line, "itl_ms", o->itl);
  points(line, "e2e_ms", o->e2e);
  return true;
}

static bool add_run(page_data *d, const char *path, const json_value *line) {
  page_run *r = more((void **)&d->run, &d->runs, sizeof *r);
  if (r == NULL) return false;
  (void)snprintf(r->path, sizeof r->path, "%s", path);
  copy(r->device_name, sizeof r->device_name, line, "device_name");
  copy(r->driver, sizeof r->driver, line, "driver");
  copy(r->toolkit, sizeof r->toolkit, line, "toolkit");
  copy(r->commit, sizeof r->commit, line, "commit");
  return true;
}

static bool add_line(page_data *d, const json_value *line) {
  const char *kind = json_text(line, "bench", "");
  page_run *run = &d->run[d->runs - 1];
  if (strcmp(kind, "case") == 0) return add_row(d, line, false);
  if (strcmp(kind, "scenario") == 0) return add_scenario(d, line);
  if (strcmp(kind, "online") == 0) return add_online(d, line);
  const bool missing = json_member(line, "missing") != NULL;
  if (strcmp(kind, "peer") == 0 && !missing && json_member(line, "model") != NULL) return add_scenario_peer(d, line);
  if (strcmp(kind, "peer") == 0 && !missing) return add_row(d, line, true);
  if (strcmp(kind, "peer") == 0) {
    page_missing *m = more((void **)&d->missing, &d->missings, sizeof *m);
    if (m == NULL) return false;
    copy(m->peer, sizeof m->peer, line, "peer");
    copy(m->why, sizeof m->why, line, "missing");
  }
  if (strcmp(kind, "limits") == 0) {
    run->copy = json_number(line, "copy_bytes_s", 0);
    run->fma = json_number(line, "fma_f32_flops_s", 0);
    run->mma = json_number(line, "mma_bf16_flops_s", 0);
    run->gemm = json_number(line, "gemm_bf16_flops_s", 0);
    run->gemm8 = json_number(line, "gemm_e4m3_flops_s", 0);
  }
  return true;
}

assay_status page_read(const char *path, page_data *data, assay_error *error) {
  FILE *file = NULL;
  int64_t size = 0;
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  json_reader *reader = json_open();
  char *line = NULL;
  size_t room = 0;
  int64_t number = 0;
  if (reader == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "report: out of memory");
  while (status == ASSAY_OK) {
    status = file_line(file, path, &line, &room, &size, error);
    if (status != ASSAY_OK || size == 0) break;
    const json_value *value = NULL;
    assay_error why = {""};
    ++number;
    if (json_parse(reader, line, (size_t)size, &value, &why) != ASSAY_OK)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: %s", path, (long long)number, why.text);
    else if (number == 1 && strcmp(json_text(value, "bench", ""), "run") != 0)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: is no JSONL of assay bench", path);
    else if (number == 1 ? !add_run(data, path, value) : !add_line(data, value))
      status = assay_fail(error, ASSAY_ERR_MEMORY, "report: out of memory");
  }
  if (status == ASSAY_OK && number == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: is no JSONL of assay bench", path);
  free(line);
  if (reader != NULL) json_close(reader);
  (void)fclose(file);
  return status;
}

void page_free(page_data *data) {
  free(data->run);
  free(data->row);
  free(data->scenario);
  free(data->scenario_peer);
  free(data->online);
  free(data->missing);
}

bool page_is_bench(const char *path) {
  static const char head[] = "{\"bench\":\"run\"";
  char begin[sizeof head] = "";
  FILE *file = NULL;
  int64_t size = 0;
  assay_error ignored = {""};
  if (file_open(path, &file, &size, &ignored) != ASSAY_OK) return false;
  const size_t got = fread(begin, 1, sizeof head - 1, file);
  (void)fclose(file);
  return got == sizeof head - 1 && memcmp(begin, head, got) == 0;
}
