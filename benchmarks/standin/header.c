/* Reading request headers and writing answers, in both encodings. */
#define _GNU_SOURCE
#include "header.h"

enum { RESPONSE = 1, VERSION = 513, BINARY_HEAD = 21, JAVA = 0 };

/* The text after "name": in a JSON object; nested objects are not told apart, no header needs it. */
const char *json_value(const char *json, size_t length, const char *name) {
  char key[NAME];
  size_t n = snprintf(key, sizeof key, "\"%s\"", name);
  const char *at = json, *end = json + length;
  while ((at = memmem(at, end - at, key, n))) {
    for (at += n; at < end && (*at == ' ' || *at == ':'); at++)
      if (*at == ':') {
        for (at++; at < end && *at == ' '; at++) {}
        return at;
      }
  }
  return NULL;
}

int json_text(const char *json, size_t length, const char *name, char *out) {
  const char *at = json_value(json, length, name), *end = json + length;
  size_t n = 0;
  if (!at) return 0;
  if (at < end && *at == '"') at++;
  while (at + n < end && !strchr("\",}", at[n]) && n < NAME - 1) n++;
  memcpy(out, at, n);
  out[n] = 0;
  return 1;
}

static int binary_text(const request *r, const char *name, char *out) {
  size_t wanted = strlen(name), at = BINARY_HEAD + read32(r->header + 13);
  while (at + 6 <= r->header_length) {
    size_t key = (uint8_t)r->header[at] << 8 | (uint8_t)r->header[at + 1], value_at = at + 2 + key + 4;
    if (value_at > r->header_length) return 0;
    size_t value = read32(r->header + value_at - 4);
    if (value > r->header_length - value_at) return 0;
    if (key == wanted && !memcmp(r->header + at + 2, name, key)) {
      snprintf(out, NAME, "%.*s", (int)value, r->header + value_at);
      return 1;
    }
    at = value_at + value;
  }
  return 0;
}

int field(const request *r, const char *name, char *out) {
  *out = 0;
  return r->binary ? binary_text(r, name, out) : json_text(r->header, r->header_length, name, out);
}

long long number(const request *r, const char *name, long long otherwise) {
  char text[NAME];
  return field(r, name, text) ? atoll(text) : otherwise;
}

int read_head(request *r) {
  char text[NAME];
  if (r->binary) {
    if (r->header_length < BINARY_HEAD) return -1;
    r->code = (int16_t)((uint8_t)r->header[0] << 8 | (uint8_t)r->header[1]);
    r->opaque = read32(r->header + 5);
    r->flag = read32(r->header + 9);
    return 0;
  }
  if (!r->header_length || *r->header != '{') return -1;
  r->code = json_text(r->header, r->header_length, "code", text) ? atoi(text) : 0;
  r->opaque = json_text(r->header, r->header_length, "opaque", text) ? atoi(text) : 0;
  r->flag = json_text(r->header, r->header_length, "flag", text) ? atoi(text) : 0;
  return 0;
}

static void print(buffer *b, const char *format, const char *one, const char *two) {
  size_t room = strlen(format) + strlen(one) + strlen(two) + 1;
  reserve(b, room);
  b->length += snprintf(b->data + b->length, room, format, one, two);
}

void add_text(answer_head *a, const char *name, const char *value) {
  if (!a->binary) {
    print(&a->fields, a->fields.length ? ",\"%s\":\"%s\"" : "\"%s\":\"%s\"", name, value);
    return;
  }
  size_t key = strlen(name), text = strlen(value);
  char lengths[6] = {key >> 8, key};
  write32(lengths + 2, text);
  append(&a->fields, lengths, 2);
  append(&a->fields, name, key);
  append(&a->fields, lengths + 2, 4);
  append(&a->fields, value, text);
}

void add_number(answer_head *a, const char *name, long long value) {
  char text[24];
  snprintf(text, sizeof text, "%lld", value);
  add_text(a, name, text);
}

static size_t binary_head(char *out, const answer_head *a) {
  size_t remark = strlen(a->remark);
  memset(out, 0, BINARY_HEAD);
  out[0] = a->code >> 8;
  out[1] = a->code;
  out[2] = JAVA;
  out[3] = VERSION >> 8;
  out[4] = VERSION & 0xff;
  write32(out + 5, a->opaque);
  write32(out + 9, a->flag);
  write32(out + 13, remark);
  memcpy(out + 17, a->remark, remark);
  write32(out + 17 + remark, a->fields.length);
  memcpy(out + BINARY_HEAD + remark, a->fields.data, a->fields.length);
  return BINARY_HEAD + remark + a->fields.length;
}

static size_t json_head(char *out, size_t room, const answer_head *a) {
  int remark = *a->remark != 0;
  return snprintf(out, room,
                  "{\"code\":%d,\"extFields\":{%.*s},\"flag\":%d,\"language\":\"JAVA\",\"opaque\":%d%s%s%s,"
                  "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":%d}",
                  a->code, (int)a->fields.length, a->fields.data ? a->fields.data : "", a->flag, (int)a->opaque,
                  remark ? ",\"remark\":\"" : "", a->remark, remark ? "\"" : "", VERSION);
}

/* Queues head and room for a body of *body* bytes on the connection; returns where the body goes. */
char *finish(connection *c, answer_head *a, size_t body) {
  size_t room = 256 + strlen(a->remark) + a->fields.length;
  reserve(&c->out, 8 + room + body);
  char *frame = c->out.data + c->out.length;
  size_t head = a->binary ? binary_head(frame + 8, a) : json_head(frame + 8, room, a);
  write32(frame, 4 + head + body);
  write32(frame + 4, head | (uint32_t)a->binary << 24);
  c->out.length += 8 + head + body;
  return frame + 8 + head;
}

answer_head *begin(const request *r, int code, const char *remark) {
  static answer_head a;  /* one thread, one answer at a time: its buffer is kept for the next */
  a.binary = mirror_encoding && r->binary;
  a.code = code;
  a.flag = RESPONSE;
  a.opaque = r->opaque;
  a.remark = remark;
  a.fields.length = 0;
  return &a;
}
