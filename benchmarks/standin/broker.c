/* What the stand-in answers, code by code, as a 5.5.0 broker with one master would. */
#define _GNU_SOURCE
#include "header.h"

enum {
  SUCCESS = 0, SYSTEM_ERROR = 1, NOT_SUPPORTED = 3, TOPIC_NOT_EXIST = 17, QUERY_NOT_FOUND = 22, ONEWAY = 2,
  PULL = 11, QUERY_OFFSET = 14, UPDATE_OFFSET = 15, RUNTIME_INFO = 28, SEARCH_OFFSET = 29, MAX_OFFSET = 30,
  MIN_OFFSET = 31, HEART_BEAT = 34, UNREGISTER = 35, END_TRANSACTION = 37, CONSUMER_LIST = 38, IDS_CHANGED = 40,
  CHECK_CONFIG = 46, ROUTE = 105, SEND_V2 = 310, SEND_BATCH = 320, LITE_PULL = 361,
  COMMITS = 4096, COMMIT_FLAG = 1, STORED = 1024
};

static const long long BACKLOG = 9000000000LL;  /* more than any run pulls; sends append behind it */
static long long sent[MAX_QUEUES], log_bytes;
static struct { uint64_t key; long long offset; } commits[COMMITS];
static char *stored;
static size_t stored_at[STORED + 1];  /* where message i starts, and where the last one ends */
static int stored_count;

void load_messages(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) { perror(path); exit(1); }
  fseek(file, 0, SEEK_END);
  size_t length = ftell(file), at = 0;
  rewind(file);
  stored = malloc(length);
  if (fread(stored, 1, length, file) != length) { perror(path); exit(1); }
  fclose(file);
  if (!length) { fprintf(stderr, "%s is empty\n", path); exit(1); }
  while (at < length && stored_count < STORED) stored_at[stored_count++] = at, at += read32(stored + at);
  stored_at[stored_count] = at;
}

static void succeed(connection *c, const request *r) { finish(c, begin(r, SUCCESS, ""), 0); }

static void give_body(connection *c, const request *r, const char *body, size_t length) {
  memcpy(finish(c, begin(r, SUCCESS, ""), length), body, length);
}

static void give_route(connection *c, const request *r) {
  char body[512], topic[NAME];
  field(r, "topic", topic);
  if (!strncmp(topic, "%RETRY%", 7)) {  /* here nothing is ever sent back */
    finish(c, begin(r, TOPIC_NOT_EXIST, "No topic route info in name server for the topic"), 0);
    return;
  }
  give_body(c, r, body, snprintf(body, sizeof body,
    "{\"brokerDatas\":[{\"brokerAddrs\":{\"0\":\"127.0.0.1:%d\"},\"brokerName\":\"broker-a\","
    "\"cluster\":\"DefaultCluster\",\"enableActingMaster\":false}],\"filterServerTable\":{},"
    "\"queueDatas\":[{\"brokerName\":\"broker-a\",\"perm\":6,\"readQueueNums\":%d,\"topicSysFlag\":0,"
    "\"writeQueueNums\":%d}]}", port, queues, queues));
}

static long long *committed(const request *r) {
  static const char *const parts[] = {"consumerGroup", "topic", "queueId"};
  uint64_t key = 14695981039346656037ULL;
  char text[NAME];
  for (int i = 0; i < 3; i++) {
    field(r, parts[i], text);
    for (const char *p = text; p == text || p[-1]; p++) key = (key ^ (uint8_t)*p) * 1099511628211ULL;
  }
  size_t slot = key % COMMITS;
  while (commits[slot].key && commits[slot].key != key) slot = (slot + 1) % COMMITS;
  if (!commits[slot].key) commits[slot].key = key, commits[slot].offset = -1;
  return &commits[slot].offset;
}

static void give_offset(connection *c, const request *r, long long offset) {
  answer_head *a = begin(r, SUCCESS, "");
  add_number(a, "offset", offset);
  finish(c, a, 0);
}

static void query_offset(connection *c, const request *r) {
  char zero[NAME];
  long long offset = *committed(r);
  field(r, "setZeroIfNotFound", zero);
  if (offset < 0 && !strcmp(zero, "false"))
    finish(c, begin(r, QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"), 0);
  else give_offset(c, r, offset < 0 ? 0 : offset);
}

static int queue_of(const request *r, const char *name) {
  long long queue = number(r, name, 0);
  return queue < 0 || queue >= queues ? 0 : (int)queue;
}

static void give_messages(connection *c, const request *r) {
  int wanted = (int)number(r, "maxMsgNums", 32), queue = queue_of(r, "queueId");
  int count = wanted < 1 ? 1 : wanted < stored_count ? wanted : stored_count;
  long long offset = number(r, "queueOffset", 0);
  if (number(r, "sysFlag", 0) & COMMIT_FLAG) *committed(r) = number(r, "commitOffset", 0);
  answer_head *a = begin(r, SUCCESS, "FOUND");
  add_number(a, "suggestWhichBrokerId", 0);
  add_number(a, "nextBeginOffset", offset + count);
  add_number(a, "minOffset", 0);
  add_number(a, "maxOffset", BACKLOG + sent[queue]);
  add_number(a, "topicSysFlag", 0);
  add_number(a, "groupSysFlag", 0);
  char *body = finish(c, a, stored_at[count]);
  memcpy(body, stored, stored_at[count]);
  for (int i = 0; i < count; i++) {
    write32(body + stored_at[i] + 12, queue);
    write64(body + stored_at[i] + 20, offset + i);
  }
}

/* Offset ids of the entries of a batch, or of the one message, joined with commas. */
static int add_offset_ids(answer_head *a, const request *r, int batch) {
  static char ids[33 * 4096];
  size_t at = 0, length = 0;
  int count = 0;
  do {
    size_t size = batch && at + 4 <= r->body_length ? read32(r->body + at) : r->body_length;
    length += snprintf(ids + length, sizeof ids - length, "%s7F000001%08X%016llX", count ? "," : "", port,
                       (unsigned long long)log_bytes);
    log_bytes += size + 200;
    at += size ? size : r->body_length;
    count++;
  } while (batch && at < r->body_length && length + 34 < sizeof ids);
  add_text(a, "msgId", ids);
  return count;
}

/* 5.5.0 gives back the unique key of the message, or makes one for a batch that has none. */
static void add_transaction_id(answer_head *a, const request *r) {
  char id[33] = "7F00000100002A9F0000000000000000";
  const char *at = memmem(r->header, r->header_length, "UNIQ_KEY", 8), *end = r->header + r->header_length;
  if (at) at += r->binary ? 9 : 14;  /* the separator is one byte, or \u0001 */
  if (at && end - at >= 32) memcpy(id, at, 32);
  add_text(a, "transactionId", id);
}

static void store(connection *c, const request *r) {
  char batch[NAME];
  int queue = queue_of(r, "e");
  answer_head *a = begin(r, SUCCESS, "");
  field(r, "m", batch);
  add_number(a, "queueId", queue);
  add_transaction_id(a, r);
  int count = add_offset_ids(a, r, !strcmp(batch, "true"));
  add_text(a, "TRACE_ON", "true");
  add_text(a, "MSG_REGION", "DefaultRegion");
  add_number(a, "queueOffset", BACKLOG + sent[queue]);
  sent[queue] += count;
  if (!(r->flag & ONEWAY)) finish(c, a, 0);
}

/* The consumer group a heartbeat registers; stand-in clients have at most one. */
static void consumer_group(const request *r, char *group) {
  const char *set = json_value(r->body, r->body_length, "consumerDataSet"), *end = r->body + r->body_length;
  *group = 0;
  if (set && end - set > 2 && set[0] == '[' && set[1] != ']') json_text(set, end - set, "groupName", group);
}

void notify_group(const char *group) {
  request push = {.binary = 0};
  for (connection *c = connections; c; c = c->next) {
    if (strcmp(c->group, group)) continue;
    answer_head *a = begin(&push, IDS_CHANGED, "");
    a->flag = ONEWAY;
    add_text(a, "consumerGroup", group);
    finish(c, a, 0);
    flush(c);
  }
}

static void beat(connection *c, const request *r) {
  char group[NAME];
  json_text(r->body, r->body_length, "clientID", c->client_id);
  consumer_group(r, group);
  int joined = strcmp(group, c->group) != 0;
  memcpy(c->group, group, sizeof group);
  answer_head *a = begin(r, SUCCESS, "");
  add_text(a, "IS_SUPPORT_HEART_BEAT_V2", "true");
  add_text(a, "IS_SUB_CHANGE", "true");
  finish(c, a, 0);
  if (joined && *group) notify_group(group);
}

static void give_members(connection *c, const request *r) {
  char group[NAME], body[16384];
  size_t length = 0;
  field(r, "consumerGroup", group);
  for (connection *member = connections; member; member = member->next)
    if (!strcmp(member->group, group) && length + NAME + 32 < sizeof body)
      length += snprintf(body + length, sizeof body - length, "%s\"%s\"", length ? "," : "{\"consumerIdList\":[",
                         member->client_id);
  if (length) give_body(c, r, body, length + snprintf(body + length, sizeof body - length, "]}"));
  else finish(c, begin(r, SYSTEM_ERROR, "no consumer for this group"), 0);
}

static void leave(connection *c, const request *r) {
  char group[NAME];
  memcpy(group, c->group, sizeof group);
  c->group[0] = 0;
  succeed(c, r);
  if (*group) notify_group(group);
}

static void refuse(connection *c, const request *r) {
  char remark[64];
  snprintf(remark, sizeof remark, " request type %d not supported", r->code);
  finish(c, begin(r, NOT_SUPPORTED, remark), 0);
}

void answer(connection *c, const request *r) {
  if (r->code == SEND_V2 || r->code == SEND_BATCH) { store(c, r); return; }
  if (r->code == UPDATE_OFFSET) *committed(r) = number(r, "commitOffset", 0);
  if (r->flag & 3) return;  /* oneway, or an answer to something pushed: nobody waits */
  switch (r->code) {
    case PULL: case LITE_PULL: give_messages(c, r); break;
    case QUERY_OFFSET: query_offset(c, r); break;
    case UPDATE_OFFSET: case CHECK_CONFIG: case END_TRANSACTION: succeed(c, r); break;
    case RUNTIME_INFO: give_body(c, r, "{\"table\":{}}", 12); break;
    case SEARCH_OFFSET: case MIN_OFFSET: give_offset(c, r, 0); break;
    case MAX_OFFSET: give_offset(c, r, BACKLOG + sent[queue_of(r, "queueId")]); break;
    case HEART_BEAT: beat(c, r); break;
    case UNREGISTER: leave(c, r); break;
    case CONSUMER_LIST: give_members(c, r); break;
    case ROUTE: give_route(c, r); break;
    default: refuse(c, r);
  }
}
