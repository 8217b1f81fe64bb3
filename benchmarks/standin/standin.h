/* What the socket side (standin.c) and the broker side (broker.c) of the stand-in share. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 256, MAX_QUEUES = 1024 };

typedef struct { char *data; size_t length, capacity; } buffer;

/* client_id and group are what the heartbeats of this connection said, empty before the first. */
typedef struct connection {
  int fd, blocked;
  buffer in, out;
  size_t written;
  char client_id[NAME], group[NAME];
  struct connection *next;
} connection;

typedef struct {
  int binary, code, flag;
  uint32_t opaque;
  const char *header, *body;
  size_t header_length, body_length;
} request;

extern connection *connections;
extern int port, queues, mirror_encoding;

void reserve(buffer *b, size_t more);
void append(buffer *b, const void *data, size_t length);
int flush(connection *c);
void load_messages(const char *path);
int read_head(request *r);
void answer(connection *c, const request *r);
void notify_group(const char *group);

static inline uint32_t read32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static inline void write32(char *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static inline void write64(char *p, uint64_t v) { write32(p, v >> 32); write32(p + 4, v); }
