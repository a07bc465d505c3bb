/* expected.c: two sessions of the reference side by side, and their file. */
#include "expected.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"
#include "core/json.h"

/* ---- one session ------------------------------------------------------------------------------------- */

typedef struct live_share {
  int64_t heads, keys, live, visible;
} live_share;

/* Actions on the state of a family that has states. Slot 0 is the walk's, and slot 1 keeps what a prompt left. */
typedef enum walk_state { STATE_GOES_ON, STATE_KEPT, STATE_PUT_BACK } walk_state;

/* One prompt in one session; positions are slots. */
typedef struct walk {
  const assay_model_config *config;
  assay_model_session *session;
  int32_t *ids, *table; /* [most], [blocks] */
  int64_t *slots;       /* [most] */
  int64_t most, blocks;
  double *logits; /* [V] */
} walk;

static bool wants_p(void *context, const char *name) {
  (void)context;
  const size_t n = strlen(name);
  return n > 7 && strcmp(name + n - 7, ".attn.p") == 0;
}

static void count_p(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  live_share *s = context;
  (void)name;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t t = 0; t < s->keys && t < width; ++t, ++s->visible)
      s->live += value[i * width + t] != 0;
}

/* Positions [from, to) are computed anew; logits of the last. */
static assay_status advance(walk *w, int64_t from, int64_t to, walk_state state, live_share *share,
                            assay_error *error) {
  static const int32_t slot[1] = {0}, pairs[3] = {0, 1, 0};
  const int64_t n = to - from;
  const bool states = assay_model_has_states(w->config);
  const int32_t cu_q[2] = {0, (int32_t)n}, kv_len[1] = {(int32_t)to}, row[1] = {(int32_t)(n - 1)};
  assay_model_batch b = {.requests = 1,
                         .cu_q = cu_q,
                         .ids = w->ids + from,
                         .kv_len = kv_len,
                         .slots = w->slots + from,
                         .block_table = w->table,
                         .max_blocks = w->blocks,
                         .logit_rows = row,
                         .logit_count = 1,
                         .states = states ? slot : NULL,
                         .state_copies = state == STATE_KEPT ? pairs : pairs + 1,
                         .state_copy_count = states && state != STATE_GOES_ON};
  const assay_model_taps taps = {share, wants_p, count_p, NULL};
  if (share != NULL) share->keys = to;
  return assay_model_ref()->forward(w->session, &b, w->logits, share != NULL ? &taps : NULL, error);
}

static void walk_close(walk *w) {
  assay_model_ref()->close(w->session);
  free(w->ids);
  free(w->table);
  free(w->slots);
  free(w->logits);
}

static assay_status walk_open(walk *w, const assay_model_config *config, const assay_model_weights *weights,
                              assay_model_mode mode, uint64_t seed, int64_t number, int64_t longest,
                              assay_error *error) {
  const int64_t block = config->block_size, most = longest + EXPECTED_STEPS;
  *w = (walk){.config = config, .most = most, .blocks = (most + block - 1) / block};
  w->ids = calloc((size_t)most, sizeof *w->ids);
  w->table = calloc((size_t)w->blocks, sizeof *w->table);
  w->slots = calloc((size_t)most, sizeof *w->slots);
  w->logits = calloc((size_t)config->vocab, sizeof *w->logits);
  if (w->ids == NULL || w->table == NULL || w->slots == NULL || w->logits == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "expected: out of memory");
  for (int64_t i = 0; i < most; ++i) {
    w->slots[i] = i;
    w->table[i / block] = (int32_t)(i / block);
  }
  assay_model_prompt(config, seed, number, longest, w->ids);
  const assay_model_limits limits = {w->blocks, longest, 1, 1, assay_model_has_states(config) ? 2 : 0};
  return assay_model_ref()->open(config, weights, &limits, mode, &w->session, error);
}

/* ---- both -------------------------------------------------------------------------------------------- */

static void best_of(const double *logits, int64_t V, int32_t *id, double *logit) {
  int32_t count = 0;
  for (int64_t v = 0; v < V; ++v) {
    int32_t at = count;
    while (at > 0 && logits[v] > logit[at - 1])
      --at;
    if (at >= EXPECTED_BEST) continue;
    if (count < EXPECTED_BEST) ++count;
    for (int32_t i = count - 1; i > at; --i) {
      logit[i] = logit[i - 1];
      id[i] = id[i - 1];
    }
    logit[at] = logits[v];
    id[at] = (int32_t)v;
  }
  for (; count < EXPECTED_BEST; ++count) { /* a vocabulary of fewer */
    id[count] = -1;
    logit[count] = -HUGE_VAL;
  }
}

static double distance(const double *a, const double *b, int64_t V) {
  double sum = 0;
  for (int64_t v = 0; v < V; ++v)
    sum += (a[v] - b[v]) * (a[v] - b[v]);
  return sqrt(sum / (double)V);
}

/* The steps after the first `length` ids; what follows them in both walks is put back by the caller's next prefill. */
static assay_status follow(walk *exact, walk *mirror, int64_t from, int64_t length, expected *made,
                           assay_error *error) {
  const int64_t V = exact->config->vocab;
  const bool gate = exact->config->arch == ASSAY_ASYNCT;
  live_share share = {.heads = exact->config->heads};
  int32_t kept[EXPECTED_STEPS];
  memcpy(kept, exact->ids + length, sizeof kept);
  made->prompt = length;
  made->rms = 0;
  assay_status status = ASSAY_OK;
  for (int64_t s = 0; s < EXPECTED_STEPS && status == ASSAY_OK; ++s) {
    const int64_t begin = s == 0 ? from : length + s - 1, end = length + s;
    const walk_state state = s == 1 ? STATE_KEPT : s == 0 && from > 0 ? STATE_PUT_BACK : STATE_GOES_ON;
    status = advance(exact, begin, end, state, gate && s > 0 ? &share : NULL, error);
    if (status == ASSAY_OK) status = advance(mirror, begin, end, state, NULL, error);
    if (status != ASSAY_OK) break;
    best_of(exact->logits, V, made->id[s], made->logit[s]);
    made->rms += distance(exact->logits, mirror->logits, V) / EXPECTED_STEPS;
    exact->ids[end] = mirror->ids[end] = made->id[s][0];
  }
  made->live = share.visible > 0 ? (double)share.live / (double)share.visible : 0;
  memcpy(exact->ids + length, kept, sizeof kept);
  memcpy(mirror->ids + length, kept, sizeof kept);
  return status;
}

assay_status expected_compute(const assay_model_config *config, const assay_model_weights *weights, uint64_t seed,
                              int64_t number, const int64_t *length, int64_t count, expected *made,
                              assay_error *error) {
  walk exact = {.session = NULL}, mirror = {.session = NULL};
  const int64_t longest = length[count - 1];
  assay_status status = walk_open(&exact, config, weights, ASSAY_MODEL_EXACT, seed, number, longest, error);
  if (status == ASSAY_OK)
    status = walk_open(&mirror, config, weights, ASSAY_MODEL_MIRROR, seed, number, longest, error);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    made[i].number = number;
    status = follow(&exact, &mirror, i > 0 ? length[i - 1] : 0, length[i], &made[i], error);
  }
  walk_close(&exact);
  walk_close(&mirror);
  return status;
}

bool expected_check(const expected *one, const int32_t *ids, int64_t count, int64_t *agreed, char *why, size_t size) {
  for (*agreed = 0; *agreed < count && *agreed < EXPECTED_STEPS; ++*agreed) {
    const int64_t s = *agreed;
    if (ids[s] == one->id[s][0]) continue;
    const double open = one->logit[s][0] - 4 * one->rms;
    for (int32_t i = 1; i < EXPECTED_BEST; ++i)
      if (ids[s] == one->id[s][i] && one->logit[s][i] >= open) return true; /* from here on another text */
    (void)snprintf(
        why, size,
        "prompt %lld of %lld ids, token %lld: found %d, the reference has %d (logit %.6g, next %.6g, 4 rms of "
        "rounding %.2g)",
        (long long)one->number, (long long)one->prompt, (long long)s + 1, (int)ids[s], (int)one->id[s][0],
        one->logit[s][0], one->logit[s][1], 4 * one->rms);
    return false;
  }
  return true;
}

bool expected_check_logits(const expected *one, int64_t step, const double *logits, char *why, size_t size) {
  for (int32_t i = 0; i < EXPECTED_BEST && one->id[step][i] >= 0; ++i) {
    const double got = logits[one->id[step][i]];
    if (fabs(got - one->logit[step][i]) <= 6 * one->rms) continue;
    (void)snprintf(why, size,
                   "prompt %lld of %lld ids, token %lld: logit %d is %.6g, the reference has %.6g, 6 rms of rounding "
                   "are %.2g",
                   (long long)one->number, (long long)one->prompt, (long long)step + 1, (int)one->id[step][i], got,
                   one->logit[step][i], 6 * one->rms);
    return false;
  }
  return true;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

void expected_write(FILE *to, const assay_model_config *config, uint64_t seed, const expected *one) {
  (void)fprintf(to,
                "{\"arch\":\"%s\",\"layers\":%lld,\"hidden\":%lld,\"vocab\":%lld,\"seed\":%llu,\"number\":%lld,"
                "\"prompt\":%lld,\"rms\":%.9g,\"live_keys\":%.6g,\"ids\":[",
                assay_model_arch_name(config->arch), (long long)config->layers, (long long)config->hidden,
                (long long)config->vocab, (unsigned long long)seed, (long long)one->number, (long long)one->prompt,
                one->rms, one->live);
  for (int s = 0; s < EXPECTED_STEPS; ++s)
    for (int i = 0; i < EXPECTED_BEST; ++i)
      (void)fprintf(to, "%s%d", s + i > 0 ? "," : "", (int)one->id[s][i]);
  (void)fputs("],\"logits\":[", to);
  for (int s = 0; s < EXPECTED_STEPS; ++s)
    for (int i = 0; i < EXPECTED_BEST; ++i)
      (void)fprintf(to, "%s%.9g", s + i > 0 ? "," : "", one->logit[s][i]);
  (void)fputs("]}\n", to);
}

static bool is_of(const json_value *line, const assay_model_config *config, uint64_t seed, int64_t number,
                  int64_t prompt) {
  return strcmp(json_text(line, "arch", ""), assay_model_arch_name(config->arch)) == 0 &&
         json_integer(line, "layers", 0) == config->layers && json_integer(line, "hidden", 0) == config->hidden &&
         json_integer(line, "vocab", 0) == config->vocab && json_integer(line, "seed", -1) == (int64_t)seed &&
         json_integer(line, "number", -1) == number && json_integer(line, "prompt", -1) == prompt;
}

static bool take_line(const json_value *line, int64_t number, int64_t prompt, expected *made) {
  const json_value *ids = json_member(line, "ids"), *logits = json_member(line, "logits");
  made->number = number;
  made->prompt = prompt;
  made->rms = json_number(line, "rms", -1);
  made->live = json_number(line, "live_keys", 0);
  int64_t n = 0;
  if (ids == NULL || logits == NULL) return false;
  for (const json_value *i = ids->child, *l = logits->child; i != NULL && l != NULL; i = i->next, l = l->next, ++n) {
    if (n == EXPECTED_STEPS * EXPECTED_BEST) return false;
    made->id[n / EXPECTED_BEST][n % EXPECTED_BEST] = (int32_t)i->number;
    made->logit[n / EXPECTED_BEST][n % EXPECTED_BEST] = l->number;
  }
  return n == EXPECTED_STEPS * EXPECTED_BEST && made->rms > 0;
}

assay_status expected_read(const char *path, const assay_model_config *config, uint64_t seed, int64_t number,
                           int64_t prompt, expected *made, bool *found, assay_error *error) {
  *found = false;
  FILE *file = NULL;
  int64_t size = 0;
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  json_reader *reader = json_open();
  char *line = NULL;
  size_t room = 0;
  if (reader == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "expected: out of memory");
  int64_t at = 0;
  while (status == ASSAY_OK && !*found) {
    status = file_line(file, path, &line, &room, &size, error);
    if (status != ASSAY_OK || size == 0) break;
    const json_value *value = NULL;
    ++at;
    assay_error why = {""};
    status = json_parse(reader, line, (size_t)size, &value, &why);
    if (status != ASSAY_OK) (void)assay_fail(error, status, "%s:%lld: %s", path, (long long)at, why.text);
    if (status != ASSAY_OK || !is_of(value, config, seed, number, prompt)) continue;
    if (take_line(value, number, prompt, made))
      *found = true;
    else
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: allowed: %d ids, as many logits, rms > 0", path,
                          (long long)at, EXPECTED_STEPS * EXPECTED_BEST);
  }
  free(line);
  if (reader != NULL) json_close(reader);
  (void)fclose(file);
  return status;
}
