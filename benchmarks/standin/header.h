/* Headers in and out: what broker.c says its answers with. */
#include "standin.h"

typedef struct {
  int binary, code, flag;
  uint32_t opaque;
  const char *remark;
  buffer fields;
} answer_head;

const char *json_value(const char *json, size_t length, const char *name);
int json_text(const char *json, size_t length, const char *name, char *out);
int field(const request *r, const char *name, char *out);
long long number(const request *r, const char *name, long long otherwise);
answer_head *begin(const request *r, int code, const char *remark);
void add_text(answer_head *a, const char *name, const char *value);
void add_number(answer_head *a, const char *name, long long value);
char *finish(connection *c, answer_head *a, size_t body);
