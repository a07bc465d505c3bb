/* scenario_peer.c: the folder that a peer of scenarios reads, and the lines that it leaves there. */
#include "scenario_peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/text/text.h"
#include "core/files/bytes.h"
#include "core/files/model_file.h"
#include "core/json.h"

static const char *const files[] = {"scenarios.json", "model.json", "model.bin", "peer.jsonl"};

static void path_of(const scenario_folder *folder, const char *name, char path[320]) {
  (void)snprintf(path, 320, "%s/%s", folder->path, name);
}

assay_status scenario_folder_make(scenario_folder *made, assay_error *error) {
  char path[320];
  const char *below = getenv("TMPDIR");
  *made = (scenario_folder){.path = ""};
  const int length = snprintf(made->path, sizeof made->path, "%s/assay_peer_XXXXXX", below != NULL ? below : "/tmp");
  if (length >= (int)sizeof made->path || mkdtemp(made->path) == NULL) {
    const int why = errno;
    made->path[0] = '\0';
    return assay_fail(error, ASSAY_ERR_IO, "--peers: no folder below '%.200s': %s", below != NULL ? below : "/tmp",
                      length >= (int)sizeof made->path ? "its path is too long" : strerror(why));
  }
  path_of(made, files[0], path);
  made->asked = fopen(path, "w");
  return made->asked != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_IO, "--peers: %s: %s", path, strerror(errno));
}

/* ---- what the peer reads ----------------------------------------------------------------------------- */

static void number(FILE *to, const char *key, double value) {
  (void)fprintf(to, ",\"%s\":", key);
  text_json_number(to, value);
}

assay_status scenario_folder_add(scenario_folder *to, const scenario_setup *setup, const scenario *one,
                                 const scenario_result *result, assay_error *error) {
  int64_t longest = 1;
  for (int64_t i = 0; i < one->batch; ++i)
    longest = scenario_prompt(one, i) > longest ? scenario_prompt(one, i) : longest;
  int32_t *ids = calloc((size_t)longest, sizeof *ids);
  if (ids == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "--peers: out of memory");
  (void)fputs(to->count > 0 ? ",\n{\"name\":" : "[{\"name\":", to->asked);
  text_json(to->asked, one->name);
  (void)fprintf(to->asked, ",\"output\":%lld", (long long)one->output);
  number(to->asked, "wall_ms", result->wall_ms);
  number(to->asked, "limit_ms", result->limit_ms);
  (void)fputs(",\"expected\":[", to->asked);
  for (int64_t i = 0; i < result->checked; ++i) {
    if (i > 0) (void)fputc(',', to->asked);
    expected_write(to->asked, setup->config, setup->seed, &result->want[i]);
  }
  (void)fputs("],\"prompts\":[", to->asked);
  for (int64_t i = 0; i < one->batch; ++i) {
    const int64_t n = scenario_prompt(one, i);
    assay_model_prompt(setup->config, setup->seed, i, n, ids);
    for (int64_t t = 0; t < n; ++t)
      (void)fprintf(to->asked, "%s%d", t > 0 ? "," : i > 0 ? ",[" : "[", (int)ids[t]);
    (void)fputc(']', to->asked);
  }
  (void)fputs("]}", to->asked);
  free(ids);
  ++to->count;
  return ASSAY_OK;
}

assay_status scenario_folder_finish(scenario_folder *to, const scenario_setup *setup, assay_error *error) {
  (void)fputs(to->count > 0 ? "]\n" : "[]\n", to->asked);
  const bool bad = ferror(to->asked) != 0, closed = fclose(to->asked) == 0;
  to->asked = NULL;
  if (bad || !closed) return assay_fail(error, ASSAY_ERR_IO, "--peers: %s/%s: not written", to->path, files[0]);
  return model_file_write(to->path, setup->config, setup->weights, error);
}

/* ---- what the peer leaves ---------------------------------------------------------------------------- */

assay_status scenario_folder_take(const scenario_folder *from, FILE *jsonl, bool *whole, assay_error *error) {
  char path[320];
  path_of(from, "peer.jsonl", path);
  *whole = false;
  FILE *file = NULL;
  char *line = NULL;
  int64_t size = 0, lines = 0;
  size_t room = 0;
  bool missing = false;
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  json_reader *reader = json_open();
  if (reader == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "--peers: out of memory");
  while (status == ASSAY_OK) {
    const json_value *value = NULL;
    assay_error why = {""};
    status = file_line(file, path, &line, &room, &size, error);
    if (status != ASSAY_OK || size == 0) break;
    if (json_parse(reader, line, (size_t)size, &value, &why) != ASSAY_OK || line[size - 1] != '\n' ||
        strcmp(json_text(value, "bench", ""), "peer") != 0) {
      status =
          assay_fail(error, ASSAY_ERR_INPUT, "--peers: %s: found '%.60s', allowed whole lines of a peer", path, line);
      break;
    }
    missing = missing || json_member(value, "missing") != NULL;
    lines += json_member(value, "scenario") != NULL;
    (void)fwrite(line, 1, (size_t)size, jsonl);
  }
  *whole = lines == from->count || (missing && lines == 0);
  free(line);
  if (reader != NULL) json_close(reader);
  (void)fclose(file);
  return status;
}

void scenario_folder_remove(scenario_folder *made) {
  char path[320];
  if (made->asked != NULL) (void)fclose(made->asked);
  for (size_t i = 0; i < sizeof files / sizeof *files && made->path[0] != '\0'; ++i) {
    path_of(made, files[i], path);
    (void)unlink(path);
  }
  if (made->path[0] != '\0') (void)rmdir(made->path);
  *made = (scenario_folder){.path = ""};
}
