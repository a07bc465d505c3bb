// door.cpp: the variants of the door. A launch is a kernel of one thread that asks the interpreter, so that graphs
// record and replay it like any other.
#include <string.h>

#include <utility>

#include "door.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/read.h"

namespace ASSAY_NS {

static door_settings settings;
static char answer[DOOR_TEXT]; /* the answer to the last question */

/* A call by value: what a recorded launch keeps. */
struct kept_call {
  int32_t row;
  const assay_op *op;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
};

static const char *ask_of(const kept_call &kept, assay_error *error) {
  const assay_call call = {kept.op, kept.arg, kept.param};
  door_image image;
  door_text question = {nullptr, 0, 0, false};
  assay_status status = door_copy_in(&call, door_memory(), &image, error);
  if (status == ASSAY_OK) {
    door_describe(&call, &image, "call", kept.row, &question);
    status = door_ask(&question, answer, sizeof answer, error);
  }
  if (status == ASSAY_OK) status = door_copy_out(&image, door_memory(), error);
  free(question.at);
  door_image_end(&image, door_memory());
  if (status != ASSAY_OK) return error->text;
  return answer[0] == 'd' ? nullptr : answer[0] != '\0' ? answer + 1 : "no answer";
}

static char refusal[DOOR_TEXT]; /* the reason why the last launch failed; "": it did not */

__global__ void call_python(kept_call kept) {
  static assay_error error;
  error.text[0] = '\0';
  const char *why = ask_of(kept, &error);
  if (why == nullptr) return;
  (void)snprintf(refusal, sizeof refusal, "%s", why);
  assay_simt->fault(refusal, "python", 0);
}

/* Tells whether one list of the claims has the word. */
static bool among(const char *list, size_t size, const char *word) {
  const size_t length = strlen(word);
  for (size_t at = 0; at < size;) {
    size_t n = 0;
    while (at + n < size && list[at + n] != ',')
      ++n;
    if (n == length && strncmp(list + at, word, n) == 0) return true;
    at += n + 1;
  }
  return false;
}

/* Writes the value that the call has on an axis of claims; "": that axis is not looked at. */
static void axis_value(const assay_call *call, const char *axis, size_t size, char *value, size_t room) {
  const assay_op *op = call->op;
  value[0] = '\0';
  const auto is = [&](const char *name) { return strlen(name) == size && strncmp(axis, name, size) == 0; };
  int32_t first = 0;
  while (first < op->arg_count && strchr(op->args[first].dtypes, '=') != nullptr)
    ++first;
  if (is("dtype") && first < op->arg_count) {
    (void)snprintf(value, room, "%s", assay_dtype_name(call->arg[first].dtype));
  } else if (is("kv_dtype")) {
    for (int32_t i = 0; i < op->arg_count; ++i)
      if (op->args[i].content == ASSAY_K_CACHE && call->arg[i].data != nullptr)
        (void)snprintf(value, room, "%s",
                       call->arg[i].dtype == call->arg[first].dtype ? "same" : assay_dtype_name(call->arg[i].dtype));
  } else if (is("out_dtype")) {
    for (int32_t i = 0; i < op->arg_count; ++i)
      if (op->args[i].role == ASSAY_OUT && strchr(op->args[i].dtypes, ',') != nullptr && call->arg[i].data != nullptr)
        (void)snprintf(value, room, "%s",
                       call->arg[i].dtype == call->arg[first].dtype ? "same" : assay_dtype_name(call->arg[i].dtype));
  } else {
    for (int32_t p = 0; p < op->param_count; ++p)
      if (is(op->params[p].name) && op->params[p].kind == ASSAY_ENUM) {
        const char *names = op->params[p].names;
        for (int skip = static_cast<int>(call->param[p]); skip > 0 && strchr(names, ',') != nullptr; --skip)
          names = strchr(names, ',') + 1;
        (void)snprintf(value, room, "%.*s", static_cast<int>(strcspn(names, ",")), names);
      }
  }
}

/* Declines a call outside of the claims. The modes of ragged batches are not told apart. */
static assay_status within_claims(const assay_call *call, const door_row &row, assay_error *error) {
  const assay_op *op = call->op;
  const char *axes = op->axes != nullptr ? op->axes : op->form == ASSAY_PAGED ? "dtype,kv_dtype,layout,mode" : "dtype";
  const char *claims = row.claims;
  while (*axes != '\0' && *claims != '\0') {
    char value[32];
    const size_t name = strcspn(axes, ","), list = strcspn(claims, "|");
    if (name == 4 && strncmp(axes, "mode", 4) == 0) {
      const bool decode = assay_find_arg(call, "cu_q") == nullptr;
      const bool ragged =
          among(claims, list, "prefill") || among(claims, list, "chunked") || among(claims, list, "mixed");
      if (decode ? !among(claims, list, "decode") : !ragged)
        return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found %s, claimed %.*s", decode ? "none" : "a tensor",
                          static_cast<int>(list), claims);
    } else {
      axis_value(call, axes, name, value, sizeof value);
      if (value[0] != '\0' && !among(claims, list, value))
        return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%.*s: found %s, claimed %.*s", static_cast<int>(name), axes,
                          value, static_cast<int>(list), claims);
    }
    axes += name + (axes[name] == ',');
    claims += list + (claims[list] == '|');
  }
  return ASSAY_OK;
}

/* Tells whether the rows of argument i run along the dimension of the rows of the first argument. */
static bool shares_rows(const assay_call *call, int32_t i) {
  const assay_arg *arg = call->op->args;
  const size_t axis = strcspn(arg[0].shape, ",|");
  return call->arg[i].data != nullptr && call->arg[i].rank > 0 && call->arg[0].rank > 0 &&
         strncmp(arg[i].shape, arg[0].shape, axis) == 0 && strchr(",|", arg[i].shape[axis]) != nullptr;
}

/* Refuses rows that are not as many as those of the first argument; names all arguments that have other ones. */
static assay_status check_rows(const assay_call *call, assay_error *error) {
  char names[256] = "";
  int64_t other = 0;
  for (int32_t i = 1; i < call->op->arg_count; ++i) {
    const size_t used = strlen(names);
    if (!shares_rows(call, i) || call->arg[i].shape[0] == call->arg[0].shape[0]) continue;
    other = call->arg[i].shape[0];
    (void)snprintf(names + used, sizeof names - used, ", %s", call->op->args[i].name);
  }
  if (names[0] == '\0') return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s%s: found %lld and %lld rows, allowed as many", call->op->args[0].name,
                    names, static_cast<long long>(call->arg[0].shape[0]), static_cast<long long>(other));
}

/* Refuses shapes that are none, and pairs that do not fit. The operator's own check names one of the two, or the
 * dimension; these messages name all that may be meant. */
static assay_status check_shapes(const assay_call *call, assay_error *error) {
  const assay_op *op = call->op;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_tensor *t = &call->arg[i];
    if (t->data == nullptr) continue;
    if (t->rank < 0 || t->rank > ASSAY_MAX_RANK)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: rank: found %d, allowed 0 to %d", op->args[i].name, t->rank,
                        static_cast<int>(ASSAY_MAX_RANK));
    for (int32_t a = 0; a < t->rank; ++a)
      if (t->shape[a] < 0)
        return assay_fail(error, ASSAY_ERR_INPUT, "%s, %s: found %lld along axis %d, allowed 0 and more",
                          op->args[i].name, op->args[i].shape, static_cast<long long>(t->shape[a]), a);
  }
  ASSAY_TRY(check_rows(call, error));
  const assay_tensor *table = assay_find_arg(call, "block_table"), *length = assay_find_arg(call, "kv_len");
  if (table != nullptr && length != nullptr && table->rank == 2 && length->rank == 1 &&
      table->shape[0] != length->shape[0])
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_len, block_table: found %lld and %lld requests, allowed the same",
                      static_cast<long long>(length->shape[0]), static_cast<long long>(table->shape[0]));
  return ASSAY_OK;
}

/* Returns the bytes from a tensor's first element to its last. */
static double extent_of(const assay_tensor *t) {
  double last = 0;
  for (int32_t a = 0; a < t->rank; ++a)
    last += static_cast<double>(t->shape[a] - 1) * static_cast<double>(t->stride[a]);
  return last * static_cast<double>(assay_dtype_size(t->dtype));
}

/* Declines plain tensors that are too large to be copied to the interpreter: those of the law vast. A pool of blocks
 * may be larger, since only its blocks in use are copied. Its extent must have a place in the shared memory. */
static assay_status expect_copies(const assay_call *call, assay_error *error) {
  constexpr double most = 0x1p26, farthest = 0x1p45; /* memory.c has places for twice as much */
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (call->arg[i].data != nullptr && extent_of(&call->arg[i]) > farthest)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "%s: found %.0f bytes to its last element, taken here: up to %.0f", call->op->args[i].name,
                        extent_of(&call->arg[i]), farthest);
  for (int32_t i = 0; i < call->op->arg_count && call->op->form == ASSAY_PLAIN; ++i) {
    double elements = 1;
    for (int32_t a = 0; call->arg[i].data != nullptr && a < call->arg[i].rank; ++a)
      elements *= static_cast<double>(call->arg[i].shape[a]);
    if (elements > most)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %.0f elements, taken here: up to %.0f",
                        call->op->args[i].name, elements, most);
  }
  return ASSAY_OK;
}

static assay_status supports_row(int32_t row, const assay_call *call, assay_error *error) {
  const assay_op *op = call->op;
  ASSAY_TRY(check_shapes(call, error));
  if (op->check != nullptr) ASSAY_TRY(op->check(call, error));
  ASSAY_TRY(expect_copies(call, error));
  ASSAY_TRY(within_claims(call, settings.row[row], error));
  if (!settings.row[row].asks) return ASSAY_OK;
  door_text question = {nullptr, 0, 0, false};
  door_describe(call, nullptr, "supports", row, &question);
  const assay_status status = door_ask(&question, answer, sizeof answer, error);
  free(question.at);
  if (status != ASSAY_OK || answer[0] == 'd') return status;
  return assay_fail(error, answer[0] == 'u' ? ASSAY_ERR_UNSUPPORTED : ASSAY_ERR_INTERNAL, "%s", answer + 1);
}

static assay_status launch_row(int32_t row, const assay_call *call, assay_env *env, assay_error *error) {
  kept_call kept;
  memset(&kept, 0, sizeof kept);
  kept.row = row;
  kept.op = call->op;
  memcpy(kept.arg, call->arg, static_cast<size_t>(call->op->arg_count) * sizeof kept.arg[0]);
  memcpy(kept.param, call->param, static_cast<size_t>(call->op->param_count) * sizeof kept.param[0]);
  refusal[0] = '\0';
  assay_error inner = {""};
  (void)snprintf(env->path, sizeof env->path, "python %s", settings.row[row].name);
  const assay_status status = ASSAY_LAUNCH(&inner, call_python, 1, 1, 0, env->stream, kept);
  if (status == ASSAY_OK) return status;
  return refusal[0] != '\0' ? assay_fail(error, ASSAY_ERR_INTERNAL, "%s", refusal)
                            : assay_fail(error, status, "%s", inner.text);
}

/* ---- a function for each row: a variant's functions are not told which one they are of --------------------------- */

template <int32_t Row> static assay_status supports(const assay_call *call, assay_error *error) {
  return supports_row(Row, call, error);
}

template <int32_t Row> static assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return supports_row(Row, call, error);
}

template <int32_t Row> static assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  ASSAY_TRY(supports_row(Row, call, error));
  return launch_row(Row, call, env, error);
}

template <int32_t... Row> static void set_rows(assay_variant *to, std::integer_sequence<int32_t, Row...>) {
  ((to[Row].supports = supports<Row>, to[Row].workspace = workspace<Row>, to[Row].launch = launch<Row>), ...);
}

static const assay_plugin_table *table_of(const assay_host *host) {
  static assay_variant variants[DOOR_MOST_VARIANTS];
  static assay_plugin_table table = {ASSAY_ABI, sizeof(assay_plugin_table), "python_door", variants, 0};
  assay_error error = {""};
  if (!plugin_accepts(host)) return nullptr;
  assay_status status = door_read_settings(&settings, &error);
  if (status == ASSAY_OK) status = door_open(settings.python, &error);
  if (status != ASSAY_OK) {
    (void)snprintf(host->refusal, host->refusal_size, "%s", error.text);
    return nullptr;
  }
  set_rows(variants, std::make_integer_sequence<int32_t, DOOR_MOST_VARIANTS>());
  for (int32_t i = 0; i < settings.count; ++i) {
    const door_row &row = settings.row[i];
    variants[i].struct_size = sizeof(assay_variant);
    variants[i].op = row.op, variants[i].name = row.name, variants[i].why = row.why;
    variants[i].device = ASSAY_DEVICE_NAME, variants[i].arch = "any", variants[i].claims = row.claims;
    variants[i].contract = row.contract;
  }
  table.variant_count = settings.count;
  return &table;
}

} // namespace ASSAY_NS

extern "C" __attribute__((visibility("default"))) const assay_plugin_table *assay_plugin(const assay_host *host) {
  return ASSAY_NS::table_of(host);
}
