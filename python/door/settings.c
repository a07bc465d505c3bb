/* settings.c: reads the variants that the door gives, from the environment. */
#include <stdlib.h>
#include <string.h>

#include "door.h"

static const struct {
  const char *name;
  size_t at;
} dtypes[] = {{"k", offsetof(assay_contract, k)},
              {"v", offsetof(assay_contract, v)},
              {"score", offsetof(assay_contract, score)},
              {"p", offsetof(assay_contract, p)},
              {"partial", offsetof(assay_contract, partial)},
              {"rotated", offsetof(assay_contract, rotated)},
              {"state", offsetof(assay_contract, state)},
              {"qk", offsetof(assay_contract, qk)},
              {"chunk", offsetof(assay_contract, chunk)},
              {"gates", offsetof(assay_contract, gates)}},
  reals[] = {{"exp_ulp", offsetof(assay_contract, exp_ulp)},
             {"denominator_add", offsetof(assay_contract, denominator_add)},
             {"p_step", offsetof(assay_contract, p_step)}},
  counts[] = {{"qk_lanes", offsetof(assay_contract, qk_lanes)},
              {"pv_lanes", offsetof(assay_contract, pv_lanes)},
              {"lanes", offsetof(assay_contract, lanes)},
              {"keys_per_split", offsetof(assay_contract, keys_per_split)},
              {"cut", offsetof(assay_contract, cut)}},
  flags[] = {{"run_to_run", offsetof(assay_contract, run_to_run)},
             {"renumbering", offsetof(assay_contract, renumbering)},
             {"permutation", offsetof(assay_contract, permutation)},
             {"alone", offsetof(assay_contract, alone)},
             {"ftz", offsetof(assay_contract, ftz)},
             {"rescales", offsetof(assay_contract, rescales)}};

static const struct {
  const char *name;
  size_t at;
  const char *words; /* in the order of the enumeration */
} choices[] = {{"zero_p_v", offsetof(assay_contract, zero_p_v), "multiplied,skipped,skipped_for_group"},
               {"lse_base", offsetof(assay_contract, lse_base), "e,2"},
               {"lse_empty", offsetof(assay_contract, lse_empty), "-inf,+inf"},
               {"lse_sink", offsetof(assay_contract, lse_sink), "without,with"},
               {"quotient", offsetof(assay_contract, quotient), "divide,reciprocal,inverse_amax,any"},
               {"stored_scale", offsetof(assay_contract, stored_scale), "quotient,product,inverse"},
               {"generator", offsetof(assay_contract, generator), "philox,own"},
               {"start", offsetof(assay_contract, start), "zero,bias"}};
_Static_assert(sizeof(assay_generator) == sizeof(int32_t), "take_choice writes an enumeration as 32 bits");

#define FIND(list)                                                                                                     \
  for (size_t i = 0; i < sizeof(list) / sizeof *(list); ++i)                                                           \
    if (strcmp((list)[i].name, name) == 0)

static bool take_dtype(assay_dtype *to, const char *value) {
  for (int d = ASSAY_NONE; d < ASSAY_DTYPE_COUNT; ++d)
    if (strcmp(assay_dtype_name((assay_dtype)d), value) == 0) {
      *to = (assay_dtype)d;
      return true;
    }
  return false;
}

/* Sets an enumeration by the place of a word in a list with commas. */
static bool take_choice(void *to, const char *words, const char *value) {
  int32_t place = 0;
  const size_t length = strlen(value);
  for (const char *at = words; *at != '\0'; ++place) {
    const size_t n = strcspn(at, ",");
    if (n == length && strncmp(at, value, n) == 0) {
      memcpy(to, &place, sizeof place);
      return true;
    }
    at += n + (at[n] == ',');
  }
  return false;
}

/* Sets one field of a contract. The Python side has checked names and values; what is unknown here is refused. */
static bool set_field(assay_contract *c, const char *name, const char *value) {
  char *end = NULL;
  const double number = strtod(value, &end);
  const bool whole = end != value && *end == '\0';
  FIND(dtypes) return take_dtype((assay_dtype *)(void *)((char *)c + dtypes[i].at), value);
  FIND(reals) return whole && ((*(double *)(void *)((char *)c + reals[i].at) = number), true);
  FIND(counts) return whole && ((*(int32_t *)(void *)((char *)c + counts[i].at) = (int32_t)number), true);
  FIND(flags) return whole && ((*(bool *)((char *)c + flags[i].at) = number != 0), true);
  FIND(choices) return take_choice((char *)c + choices[i].at, choices[i].words, value);
  return false;
}

static assay_status wrong(const char *line, assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, DOOR_SETTINGS ": found the line '%.200s', allowed: what the package writes",
                    line);
}

static assay_status read_line(door_settings *to, char *line, assay_error *error) {
  door_row *row = to->count > 0 ? &to->row[to->count - 1] : NULL;
  char *value = strchr(line, ' ');
  if (value == NULL) return wrong(line, error);
  *value++ = '\0';
  if (strcmp(line, "python") == 0) {
    to->python = value;
  } else if (strcmp(line, "load") == 0 || strcmp(line, "path") == 0) {
    return ASSAY_OK; /* for the interpreter */
  } else if (strcmp(line, "variant") == 0) {
    char *name = strchr(value, ' ');
    if (name == NULL || to->count == DOOR_MOST_VARIANTS) return wrong(value, error);
    *name++ = '\0';
    to->row[to->count++] = (door_row){.op = value, .name = name, .why = "a Python callable", .claims = ""};
  } else if (row == NULL) {
    return wrong(line, error);
  } else if (strcmp(line, "claims") == 0) {
    row->claims = value;
  } else if (strcmp(line, "asks") == 0) {
    row->asks = value[0] == '1';
  } else if (strcmp(line, "contract") == 0) {
    char *number = strchr(value, ' ');
    if (number == NULL) return wrong(value, error);
    *number++ = '\0';
    if (!set_field(&row->contract, value, number)) return wrong(value, error);
  } else {
    return wrong(line, error);
  }
  return ASSAY_OK;
}

assay_status door_read_settings(door_settings *to, assay_error *error) {
  static char *kept; /* its pieces are the texts of the rows */
  const char *given = getenv(DOOR_SETTINGS);
  assay_status status = ASSAY_OK;
  memset(to, 0, sizeof *to);
  if (given == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      DOOR_SETTINGS ": found none, allowed: runs by the Python package (python -m assay run)");
  free(kept);
  kept = malloc(strlen(given) + 1);
  if (kept == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, DOOR_SETTINGS ": out of memory");
  memcpy(kept, given, strlen(given) + 1);
  for (char *at = kept; status == ASSAY_OK && *at != '\0';) {
    char *end = strchr(at, '\n');
    if (end != NULL) *end = '\0';
    if (*at != '\0') status = read_line(to, at, error);
    if (end == NULL) break;
    at = end + 1;
  }
  if (status == ASSAY_OK && (to->python == NULL || to->count == 0))
    status = assay_fail(error, ASSAY_ERR_INPUT, DOOR_SETTINGS ": found no interpreter or no variant, allowed: both");
  return status;
}
