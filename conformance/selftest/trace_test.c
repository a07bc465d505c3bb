/* trace_test.c: recorded requests: what the files hold, and what is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "conformance/suite/trace.h"
#include "suite_fixture.h"

static void load(const char *name, trace *t) {
  assay_error error = {""};
  cr_assert(trace_load(name, ASSAY_SOURCE_DIR "/fixtures", t, &error) == ASSAY_OK, "%s", error.text);
}

/* Counts and first rows as the publishers' files have them. */
Test(trace, reads_the_fixtures) {
  trace t;
  load("azure_conv", &t);
  cr_assert(t.count == 19366 && t.request[0].prompt == 374 && t.request[0].output == 44);
  trace_free(&t);
  load("azure_code", &t);
  cr_assert(t.count == 8819 && t.request[0].prompt == 4808 && t.request[0].output == 10);
  trace_free(&t);
  load("mooncake", &t);
  cr_assert(t.count == 5980 && t.request[0].prompt == 6758 && t.request[0].output == 500);
  cr_assert(t.request[0].hash_count == 14 && t.hash[13] == 13 && t.hash_total == 152254);
  trace_free(&t);
}

/* A second formulation of a shared prefix: token by token, the id of the block each token lies in. */
static int64_t common_by_tokens(const trace *t, int32_t a, int32_t b) {
  const trace_request *x = &t->request[a], *y = &t->request[b];
  int64_t n = 0;
  while (n < x->prompt && n < y->prompt &&
         t->hash[x->first_hash + n / TRACE_BLOCK] == t->hash[y->first_hash + n / TRACE_BLOCK])
    ++n;
  return n;
}

Test(trace, common_prefix_is_that_of_the_ids) {
  trace t;
  int64_t shared = 0;
  load("mooncake", &t);
  for (int32_t a = 0; a < 400; ++a)
    for (int32_t b = a + 1; b < a + 12; ++b) {
      cr_assert(trace_common(&t, a, b) == common_by_tokens(&t, a, b));
      shared += trace_common(&t, a, b);
    }
  cr_assert(shared > 400 * 512, "%lld", (long long)shared);
  trace_free(&t);
}

typedef struct bad_trace {
  const char *name, *file, *text, *message;
} bad_trace;

#define CSV  "traces/azure2023/AzureLLMInferenceTrace_conv.csv"
#define JSON "traces/mooncake/conversation_trace_first5980.jsonl"
#define HEAD "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
#define ROW  "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}\n"
#define JSON_FORM                                                                                                      \
  "allowed {\"timestamp\": MS, \"input_length\": N, \"output_length\": N, \"hash_ids\": [ID, ...]} with N >= 1 and "   \
  "one id for each 512 input tokens"

static const bad_trace bad_traces[] = {
    {"azure_conv", CSV, "", ":0: found '', allowed TIMESTAMP,ContextTokens,GeneratedTokens"},
    {"azure_conv", CSV, "TIME,A,B\n", ":1: found 'TIME,A,B', allowed TIMESTAMP,ContextTokens,GeneratedTokens"},
    {"azure_conv", CSV, HEAD, ": found no request"},
    {"azure_conv", CSV, HEAD "t,1,2\r\nt,1\r\n", ":3: found 't,1', allowed TIMESTAMP,N,N with N >= 1"},
    {"azure_conv", CSV, HEAD "t,1,2\nt,0,2\n", ":3: found 't,0,2', allowed TIMESTAMP,N,N with N >= 1"},
    {"azure_conv", CSV, HEAD "t,-1,2\n", ":2: found 't,-1,2', allowed TIMESTAMP,N,N with N >= 1"},
    {"azure_conv", CSV, HEAD "t,1,2,3\n", ":2: found 't,1,2,3', allowed TIMESTAMP,N,N with N >= 1"},
    {"azure_conv", CSV, HEAD "t,99999999999999999999,3\n",
     ":2: found 't,99999999999999999999,3', allowed TIMESTAMP,N,N with N >= 1"},
    {"mooncake", JSON, "{}\n", ":1: found '{}', " JSON_FORM},
    {"mooncake", JSON, ROW "\n", ":2: found '', " JSON_FORM},
    {"mooncake", JSON, "{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5, \"hash_ids\": [0, 1]}",
     ":1: found '{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5, \"has', " JSON_FORM},
    {"mooncake", JSON, "{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5, \"hash_ids\": [0",
     ":1: found '{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5, \"has', " JSON_FORM},
};

Test(trace, refuses_malformed_rows) {
  char folder[200], path[400], expected[600];
  (void)snprintf(folder, sizeof folder, "%s", suite_fixture_folder());
  static const char *const folders[] = {"traces", "traces/azure2023", "traces/mooncake"};
  for (int i = 0; i < 3; ++i) {
    (void)snprintf(path, sizeof path, "%s%s", folder, folders[i]);
    cr_assert(mkdir(path, 0700) == 0);
  }
  folder[strlen(folder) - 1] = '\0';
  for (size_t i = 0; i < sizeof bad_traces / sizeof bad_traces[0]; ++i) {
    const bad_trace *bad = &bad_traces[i];
    assay_error error = {""};
    trace t;
    (void)snprintf(path, sizeof path, "%s/%s", folder, bad->file);
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL && fputs(bad->text, file) >= 0 && fclose(file) == 0);
    cr_expect(trace_load(bad->name, folder, &t, &error) == ASSAY_ERR_INPUT, "%s", bad->message);
    (void)snprintf(expected, sizeof expected, "%s%s", path, bad->message);
    cr_expect(strcmp(error.text, expected) == 0, "\n  got      %s\n  expected %s", error.text, expected);
    cr_expect(t.request == NULL && t.hash == NULL);
  }
}

Test(trace, refuses_what_is_not_there) {
  assay_error error = {""};
  trace t;
  cr_assert(trace_load("azure_2025", "fixtures", &t, &error) == ASSAY_ERR_INPUT);
  cr_assert(strcmp(error.text, "trace: found 'azure_2025', allowed azure_conv, azure_code, mooncake") == 0, "%s",
            error.text);
  error.text[0] = '\0';
  cr_assert(trace_load("azure_conv", "/nowhere", &t, &error) == ASSAY_ERR_INPUT);
  cr_assert(strcmp(error.text, "/nowhere/" CSV ": cannot be read: No such file or directory") == 0, "%s", error.text);
}
