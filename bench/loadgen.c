/*
 * Load for one RocketMQ server: N connections with M requests outstanding on each, from one thread.
 *
 *   loadgen PORT CONNECTIONS OUTSTANDING SECONDS WARM_SECONDS RATE PIDS TEMPLATE
 *           [others FILE EVERY] [end TEMPLATE] [pull TEMPLATE PORT OFFSETS] [hello TEMPLATE] [tls]
 *
 * RATE 0 sends the next request when an answer comes (closed loop). RATE r > 0 sends r requests a second whatever the
 * answers do (open loop); a latency then counts from the moment at which the request was due. PIDS is a comma list of
 * the server's processes, whose CPU time is measured. One JSON object goes to stdout; times in it are microseconds.
 *
 * TEMPLATE holds a frame without its two length words, as items: 'L' u32 bytes (text), 'B' (here the body begins),
 * 'E' (end), or a letter that stands for a value of each request: O opaque, Q queue id 0..7 in turn, T wall clock in
 * milliseconds, K six digits of a pseudo-random number below the template's 'N' u32 (number of topics), U a unique
 * key of 32 hex digits, S the monotonic clock in 16 hex digits, R queue id in turn of as many as are pulled, W the
 * connection's number. See frames.py.
 *
 * END is the template of a second request after each answer (an operation is both): C, J and X stand for the answer's
 * offset in the log, offset in the queue and transaction id. Requests are counted, not operations.
 *
 * PULL is the template of long polls, one connection for each of the comma list OFFSETS, where queue number n is read
 * from: I stands for n, P for the next offset. A message that comes shows in its first 16 digits when it was sent (S).
 *
 * OTHERS holds whole frames of another kind: u32 groups, u32 frames in each, then for each frame u32 size, u32 place of
 * ten characters for the opaque, u32 place of ten for a number that grows (0 for none), and the bytes. Every EVERYth request is one of them: connection number n sends those of
 * group n modulo groups, in turn. Their latencies are told apart (unless EVERY is 1), all else is counted with the rest.
 *
 * HELLO is the template of what each connection sends first. Requests of the server are answered with success.
 *
 * TLS encrypts all connections and trusts any certificate (compiled with -DWITH_TLS -lssl).
 *
 * Answers are matched by opaque, because Java answers a pipelined connection out of order.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/ssl.h>
static SSL_CTX *tls_context;
#else
typedef void SSL;
#endif

#define SECOND 1000000000ull
#define QUEUES 8
#define MAX_CODES 32
#define MAX_PULLERS 64
#define SILENCE (8 * SECOND)
#define MAX_FRAME (64u << 20)

static void fail(const char *what) {
  fprintf(stderr, "loadgen: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
  exit(1);
}

static uint64_t nanos(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}
#define NOW() nanos(CLOCK_MONOTONIC)

/* ---- latencies: buckets of 1/64 of a power of two, so a quantile is right within 1.6 % ---- */

#define STEPS 64
typedef struct { uint64_t buckets[64 * STEPS], samples, slowest; } histogram;
static histogram latencies, other_latencies, receive_latencies;

static void note(histogram *h, uint64_t ns) {
  int top = 63 - __builtin_clzll(ns | 1);
  int shift = top > 6 ? top - 6 : 0;
  h->buckets[shift * STEPS + (int)(ns >> shift)]++;
  h->samples++;
  if (ns > h->slowest) h->slowest = ns;
}

static double quantile(const histogram *h, double share) {
  uint64_t wanted = (uint64_t)(share * (double)h->samples), seen = 0;
  for (int i = 0; i < 64 * STEPS && h->samples; i++)
    if ((seen += h->buckets[i]) > wanted) {
      int shift = i < 2 * STEPS ? 0 : i / STEPS - 1;
      return (double)((uint64_t)(i - shift * STEPS) << shift) / 1e3;
    }
  return (double)h->slowest / 1e3;
}

/* ---- CPU time of the server: every thread of every process ---- */

static char *pids;

static uint64_t server_cpu(void) {
  uint64_t total = 0;
  char list[1024], path[512], text[64];
  snprintf(list, sizeof list, "%s", pids);
  for (char *pid = strtok(list, ","); pid; pid = strtok(NULL, ",")) {
    snprintf(path, sizeof path, "/proc/%s/task", pid);
    DIR *tasks = opendir(path);
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
      if (task->d_name[0] == '.') continue;
      snprintf(path, sizeof path, "/proc/%s/task/%s/schedstat", pid, task->d_name);
      FILE *f = fopen(path, "r");
      if (f && fgets(text, sizeof text, f)) total += strtoull(text, NULL, 10);
      if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
  }
  return total;
}

static double own_cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* ---- template ---- */

typedef struct { char kind; uint32_t size; char *text; } item;
#define MAX_ITEMS 256
typedef struct { item items[MAX_ITEMS]; int count; } template;
static template first, end_of, pull_of, hello;
static uint32_t topic_count = 1;
static size_t frame_bound = 200;

static uint32_t read_u32(FILE *f) {
  unsigned char b[4];
  if (fread(b, 1, 4, f) != 4) fail("template ends early");
  return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void load_template(template *t, const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) fail(path);
  for (int kind; (kind = fgetc(f)) != 'E';) {
    if (kind == EOF || t->count == MAX_ITEMS) fail("bad template");
    if (kind == 'N') { topic_count = read_u32(f); continue; }
    item *it = &t->items[t->count++];
    it->kind = (char)kind;
    if (kind == 'L') {
      it->size = read_u32(f);
      it->text = malloc(it->size + 1);
      if (fread(it->text, 1, it->size, f) != it->size) fail("template ends early");
    }
    frame_bound += it->size + 40;
  }
  fclose(f);
}

/* ---- frames of another kind ---- */

#define OPAQUE_WIDTH 10
typedef struct { uint32_t size, opaque_at, serial_at; char *bytes; } other;
static other *others;
static uint32_t group_count, group_size;
static uint64_t every;

static void load_others(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) fail(path);
  group_count = read_u32(f);
  group_size = read_u32(f);
  if (!group_count || !group_size) fail("no frames of another kind");
  others = calloc((size_t)group_count * group_size, sizeof *others);
  for (uint32_t i = 0; i < group_count * group_size; i++) {
    other *o = &others[i];
    o->size = read_u32(f);
    o->opaque_at = read_u32(f);
    o->serial_at = read_u32(f);
    if (!o->size || o->opaque_at + OPAQUE_WIDTH > o->size || o->serial_at + OPAQUE_WIDTH > o->size) fail("bad frames of another kind");
    o->bytes = malloc(o->size);
    if (fread(o->bytes, 1, o->size, f) != o->size) fail("frames of another kind end early");
    if (frame_bound < o->size) frame_bound = o->size;
  }
  fclose(f);
}

static char *decimal(char *at, uint64_t value, int width) {
  char digits[24];
  int n = 0;
  do digits[n++] = (char)('0' + value % 10); while (value /= 10);
  while (n < width) digits[n++] = '0';
  while (n) *at++ = digits[--n];
  return at;
}

static char *hex(char *at, uint64_t value, int width) {
  for (int i = width - 1; i >= 0; i--, value >>= 4) at[i] = "0123456789ABCDEF"[value & 15];
  return at + width;
}

static uint64_t wall_ms, serial;

static size_t write_other(char *out, uint32_t opaque, uint32_t group, uint32_t turn) {
  const other *o = &others[group % group_count * group_size + turn % group_size];
  char digits[OPAQUE_WIDTH + 1];
  memcpy(out, o->bytes, o->size);
  snprintf(digits, sizeof digits, "%*u", OPAQUE_WIDTH, opaque);
  memcpy(out + o->opaque_at, digits, OPAQUE_WIDTH);
  if (o->serial_at) {
    snprintf(digits, sizeof digits, "%*u", OPAQUE_WIDTH, 0x40000000u + (uint32_t)serial);
    memcpy(out + o->serial_at, digits, OPAQUE_WIDTH);
  }
  return o->size;
}

typedef struct {
  int fd, blocked;
  SSL *tls;
  char *in, *out;
  size_t in_size, in_room, out_at, out_size, out_room;
  uint32_t turn;
} peer;
typedef struct {
  uint32_t opaque;
  int peer;
  uint64_t due;
  int counts, is_other, is_half, queue;
  /* what an end or a pull repeats of the last answer */
  uint64_t log_offset, queue_offset;
  char transaction[40];
} request;
static int puller_count;

static size_t write_frame(const template *t, char *out, const request *r) {
  char *at = out + 8, *body = NULL;
  uint32_t opaque = r->opaque;
  for (int i = 0; i < t->count; i++) switch (t->items[i].kind) {
    case 'L': memcpy(at, t->items[i].text, t->items[i].size); at += t->items[i].size; break;
    case 'S': at = hex(at, NOW(), 16); break;
    case 'R': at = decimal(at, serial % (uint64_t)puller_count, 1); break;
    case 'W': at = decimal(at, (uint64_t)r->peer, 1); break;
    case 'I': at = decimal(at, (uint64_t)r->queue, 1); break;
    case 'P': case 'J': at = decimal(at, r->queue_offset, 1); break;
    case 'C': at = decimal(at, r->log_offset, 1); break;
    case 'X': at = stpcpy(at, r->transaction); break;
    case 'B': body = at; break;
    case 'O': at = decimal(at, opaque, 1); break;
    case 'Q': at = decimal(at, serial % QUEUES, 1); break;
    case 'T': at = decimal(at, wall_ms, 1); break;
    case 'K': at = decimal(at, (uint64_t)((uint32_t)serial * 2654435761u) * topic_count >> 32, 6); break;
    case 'U': at = hex(hex(at, 0x7F00000112345678ull, 16), wall_ms << 24 ^ serial, 16); break;
    default: fail("unknown letter in the template");
  }
  uint32_t length = htonl((uint32_t)(at - out - 4)), header = htonl((uint32_t)((body ? body : at) - out - 8));
  memcpy(out, &length, 4);
  memcpy(out + 4, &header, 4);
  return (size_t)(at - out);
}

/* ---- connections and requests ---- */

static int epoll_fd, peer_count, slot_count, *idle, idle_count;
static peer *peers;
static request *slots;
static uint64_t done, bad, unmatched, received, answer_bytes;
static struct { int code; uint64_t count; } codes[MAX_CODES];
static int measuring, stopping;
static double rate;

static void watch(int index, int writing) {
  struct epoll_event e = {.events = EPOLLIN | (writing ? EPOLLOUT : 0u), .data.u32 = (uint32_t)index};
  int known = peers[index].blocked >= 0;
  epoll_ctl(epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, peers[index].fd, &e);
  peers[index].blocked = writing;
}

/* send and recv, encrypted or not; both leave EAGAIN in errno where they would wait */
static ssize_t put(peer *p, const char *bytes, size_t n) {
#ifdef WITH_TLS
  if (p->tls) {
    int size = SSL_write(p->tls, bytes, n < 1 << 30 ? (int)n : 1 << 30);
    if (size <= 0) errno = SSL_get_error(p->tls, size) == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return size > 0 ? size : -1;
  }
#endif
  return send(p->fd, bytes, n, MSG_NOSIGNAL);
}

static ssize_t take(peer *p, char *bytes, size_t room) {
#ifdef WITH_TLS
  if (p->tls) {
    ssize_t all = 0;
    for (int size; (size_t)all < room; all += size)
      if ((size = SSL_read(p->tls, bytes + all, (int)(room - (size_t)all))) <= 0) {
        errno = SSL_get_error(p->tls, size) == SSL_ERROR_WANT_READ ? EAGAIN : EPROTO;
        return all && errno == EAGAIN ? all : -1;
      }
    return all;
  }
#endif
  return recv(p->fd, bytes, room, 0);
}

static void flush_peer(int index) {
  peer *p = &peers[index];
  while (p->out_at < p->out_size) {
    ssize_t n = put(p, p->out + p->out_at, p->out_size - p->out_at);
    if (n < 0 && errno == EAGAIN) {
      if (!p->blocked) watch(index, 1);
      return;
    }
    if (n < 0) fail("send");
    p->out_at += (size_t)n;
  }
  p->out_at = p->out_size = 0;
  if (p->blocked) watch(index, 0);
}

/* The connection, with room for another frame. */
static peer *room_of(int index) {
  peer *p = &peers[index];
  if (p->out_size + frame_bound > p->out_room) {
    p->out_room = 2 * (p->out_size + frame_bound);
    p->out = realloc(p->out, p->out_room);
  }
  return p;
}

/*
 * A slot's opaque is its number plus a generation in the upper bits, by which a late answer is known. It always has ten
 * digits: clients write no blanks, which the place of a shorter number in a prepared frame would have.
 */
static void ask(int slot, uint64_t due) {
  request *r = &slots[slot];
  peer *p = room_of(r->peer);
  r->opaque = (0x4000 + ((r->opaque >> 16) + 1) % 0x3FFF) << 16 | (uint32_t)slot;
  r->due = due;
  r->counts = measuring;
  char *out = p->out + p->out_size;
  if (slot >= slot_count) { p->out_size += write_frame(&pull_of, out, r); return; }
  if (end_of.count && (r->is_half = !r->is_half) == 0) { p->out_size += write_frame(&end_of, out, r); return; }
  serial++;
  r->is_other = every && serial % every == 0;
  p->out_size += r->is_other ? write_other(out, r->opaque, (uint32_t)r->peer, p->turn++) : write_frame(&first, out, r);
}

static long long number_after(const char *header, size_t size, const char *name) {
  const char *at = memmem(header, size, name, strlen(name));
  if (!at) return -1;
  for (at += strlen(name); *at == ':' || *at == ' ' || *at == '"'; at++) {}
  return atoll(at);
}

/* A text of extFields, without its quotes, cut to the room. */
static void text_after(const char *header, size_t size, const char *name, char *out, size_t room) {
  const char *at = memmem(header, size, name, strlen(name));
  size_t n = 0;
  if (at) for (at += strlen(name); at[n] != '"' && n < room - 1; n++) out[n] = at[n];
  out[n] = 0;
}

#define BODY_AT 88
static void pulled(int slot, const char *header, size_t size, const char *body, size_t body_size, long long code, uint64_t now) {
  long long next = number_after(header, size, "\"nextBeginOffset\"");
  if (code != 0 && code != 19 && code != 20 && code != 21) bad++;
  for (size_t at = 0; code == 0 && at + BODY_AT + 16 <= body_size;) {
    uint32_t word;
    char digits[17] = {0};
    memcpy(&word, body + at, 4);
    memcpy(digits, body + at + BODY_AT, 16);
    uint64_t sent = strtoull(digits, NULL, 16);
    if (measuring && sent && sent < now) { received++; note(&receive_latencies, now - sent); }
    if (!word) break;
    at += ntohl(word);
  }
  if (next >= 0 && (code == 0 || code == 20 || code == 21)) slots[slot].queue_offset = (uint64_t)next;
  if (!stopping) ask(slot, now);
}

#define SUCCESS "{\"code\":0,\"flag\":1,\"language\":\"JAVA\",\"opaque\":%lld,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":399}"
static void succeed(int index, long long opaque) {
  peer *p = room_of(index);
  char *out = p->out + p->out_size;
  uint32_t size = (uint32_t)sprintf(out + 8, SUCCESS, opaque), length = htonl(size + 4), header = htonl(size);
  memcpy(out, &length, 4);
  memcpy(out + 4, &header, 4);
  p->out_size += 8 + size;
}

static void answered(int index, char *frame, uint64_t now) {
  uint32_t word;
  memcpy(&word, frame + 4, 4);
  word = ntohl(word);
  size_t size = word & 0xFFFFFF;
  if (word >> 24) fail("an answer in the binary header");
  char kept = frame[8 + size];
  frame[8 + size] = 0;
  long long opaque = number_after(frame + 8, size, "\"opaque\""), code = number_after(frame + 8, size, "\"code\"");
  long long flag = number_after(frame + 8, size, "\"flag\"");
  if (flag >= 0 && !(flag & 1)) {
    if (!(flag & 2)) succeed(index, opaque);
    frame[8 + size] = kept;
    return;
  }
  int slot = (int)(opaque & 0xFFFF);
  int known = opaque >= 0 && slot < slot_count + puller_count && slots[slot].opaque == (uint32_t)opaque;
  if (known && slot < slot_count && end_of.count && slots[slot].is_half) {
    char id[40];
    text_after(frame + 8, size, "\"msgId\":\"", id, sizeof id);
    slots[slot].log_offset = strlen(id) == 32 ? strtoull(id + 16, NULL, 16) : 0;
    slots[slot].queue_offset = (uint64_t)number_after(frame + 8, size, "\"queueOffset\"");
    text_after(frame + 8, size, "\"transactionId\":\"", slots[slot].transaction, sizeof slots[slot].transaction);
  }
  frame[8 + size] = kept;
  if (!known) { unmatched++; return; }
  if (slot >= slot_count) {
    memcpy(&word, frame, 4);
    pulled(slot, frame + 8, size, frame + 8 + size, ntohl(word) - 4 - size, code, now);
    return;
  }
  if (measuring || (stopping && slots[slot].counts && rate > 0)) {
    if (slots[slot].counts) note(slots[slot].is_other && every > 1 ? &other_latencies : &latencies, now > slots[slot].due ? now - slots[slot].due : 0);
    if (measuring) {
      memcpy(&word, frame, 4);
      done++;
      answer_bytes += 4 + (uint64_t)ntohl(word);
    }
    if (code != 0) bad++;
    for (int i = 0; i < MAX_CODES; i++) if (codes[i].code == (int)code || !codes[i].count) {
      codes[i].code = (int)code;
      codes[i].count++;
      break;
    }
  }
  slots[slot].counts = 0;
  if (rate > 0 || stopping) idle[idle_count++] = slot;
  else ask(slot, now);
}

static void receive(int index) {
  peer *p = &peers[index];
  if (p->in_room - p->in_size < 1 << 16) p->in = realloc(p->in, (p->in_room = 2 * p->in_room + (1 << 17)) + 1);
  ssize_t n = take(p, p->in + p->in_size, p->in_room - p->in_size);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) { errno = n ? errno : 0; fail("the server closed a connection"); }
  p->in_size += (size_t)n;
  size_t at = 0;
  uint64_t now = NOW();
  while (p->in_size - at >= 8) {
    uint32_t length;
    memcpy(&length, p->in + at, 4);
    length = ntohl(length);
    if (length > MAX_FRAME || length < 4) fail("an answer of impossible length");
    if (p->in_size - at < 4 + (size_t)length) break;
    answered(index, p->in + at, now);
    at += 4 + (size_t)length;
  }
  memmove(p->in, p->in + at, p->in_size - at);
  p->in_size -= at;
#ifdef WITH_TLS
  if (p->tls && SSL_has_pending(p->tls)) receive(index);
#endif
}

static void dial(int index, int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  peer *p = &peers[index];
  int on = 1;
  p->fd = socket(AF_INET, SOCK_STREAM, 0);
  p->blocked = -1;
  if (p->fd < 0 || connect(p->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
  setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef WITH_TLS
  if (tls_context) {
    p->tls = SSL_new(tls_context);
    if (!SSL_set_fd(p->tls, p->fd) || SSL_connect(p->tls) != 1) fail("TLS handshake");
  }
#endif
  fcntl(p->fd, F_SETFL, O_NONBLOCK);
  watch(index, 0);
}

int main(int argc, char **argv) {
  if (argc < 9) fail("usage: loadgen PORT CONNECTIONS OUTSTANDING SECONDS WARM_SECONDS RATE PIDS TEMPLATE ...");
  peer_count = atoi(argv[2]);
  slot_count = peer_count * atoi(argv[3]);
  rate = atof(argv[6]);
  pids = argv[7];
  if (peer_count < 1 || slot_count < peer_count || slot_count > 0x10000 - MAX_PULLERS) fail("1 to 65472 requests outstanding");
  load_template(&first, argv[8]);
  int pull_port = 0;
  uint64_t starts[MAX_PULLERS];
  for (int at = 9; at < argc;) {
    if (!strcmp(argv[at], "others") && at + 2 < argc) {
      load_others(argv[at + 1]);
      every = (uint64_t)atoi(argv[at + 2]);
      at += 3;
    } else if (!strcmp(argv[at], "end") && at + 1 < argc) {
      load_template(&end_of, argv[at + 1]);
      at += 2;
    } else if (!strcmp(argv[at], "pull") && at + 3 < argc) {
      load_template(&pull_of, argv[at + 1]);
      pull_port = atoi(argv[at + 2]);
      for (char *from = strtok(argv[at + 3], ","); from && puller_count < MAX_PULLERS; from = strtok(NULL, ","))
        starts[puller_count++] = strtoull(from, NULL, 10);
      at += 4;
    } else if (!strcmp(argv[at], "hello") && at + 1 < argc) {
      load_template(&hello, argv[at + 1]);
      at += 2;
#ifdef WITH_TLS
    } else if (!strcmp(argv[at], "tls")) {
      tls_context = SSL_CTX_new(TLS_client_method());
      SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
      at += 1;
#endif
    } else fail(argv[at]);
  }
  prctl(PR_SET_TIMERSLACK, 1);
  epoll_fd = epoll_create1(0);
  int all_peers = peer_count + puller_count;
  peers = calloc((size_t)all_peers, sizeof *peers);
  slots = calloc((size_t)(slot_count + puller_count), sizeof *slots);
  idle = calloc((size_t)slot_count, sizeof *idle);
  for (int i = 0; i < all_peers; i++) dial(i, i < peer_count ? atoi(argv[1]) : pull_port);
  wall_ms = nanos(CLOCK_REALTIME) / 1000000;
  uint64_t start = NOW(), warm_end = start + (uint64_t)(atof(argv[5]) * 1e9), end = 0, last = start;
  uint64_t sent_open = 0, cpu = 0, cpu_end = 0, began = 0;
  double mine = 0, mine_end = 0, elapsed = 0;
  for (int i = 0; hello.count && i < peer_count; i++) {
    request r = {.opaque = 1, .peer = i};
    peer *p = room_of(i);
    p->out_size += write_frame(&hello, p->out, &r);
  }
  for (int i = 0; i < slot_count; i++) {
    slots[i].peer = i % peer_count;
    if (rate > 0) idle[idle_count++] = i;
    else ask(i, start);
  }
  for (int i = 0; i < puller_count; i++) {
    slots[slot_count + i] = (request){.peer = peer_count + i, .queue = i, .queue_offset = starts[i]};
    ask(slot_count + i, start);
  }
  struct epoll_event events[256];
  for (;;) {
    uint64_t now = NOW();
    if (!began && now >= warm_end) {
      began = NOW();
      end = began + (uint64_t)(atof(argv[4]) * 1e9);
      cpu = server_cpu();
      mine = own_cpu();
      measuring = 1;
    }
    if (measuring && now >= end) {
      measuring = 0;
      stopping = 1;
      elapsed = (double)(now - began) / 1e9;
      cpu_end = server_cpu();
      mine_end = own_cpu();
    }
    if (stopping && (idle_count == slot_count || now > end + 2 * SECOND)) break;
    if (now - last > SILENCE) { errno = 0; fail("no answer for 8 s"); }
    uint64_t wake = now + SECOND / 20;
    while (rate > 0 && !stopping && idle_count) {
      uint64_t due = start + (uint64_t)((double)sent_open * 1e9 / rate);
      if (due > now) { if (due < wake) wake = due; break; }
      sent_open++;
      ask(idle[--idle_count], due);
    }
    for (int i = 0; i < all_peers; i++) if (peers[i].out_size && !peers[i].blocked) flush_peer(i);
    if (!began && warm_end < wake) wake = warm_end;
    if (measuring && end < wake) wake = end;
    now = NOW();
    struct timespec wait = {0, wake > now ? (long)(wake - now) : 0};
    int n = epoll_pwait2(epoll_fd, events, 256, &wait, NULL);
    if (n > 0) { wall_ms = nanos(CLOCK_REALTIME) / 1000000; last = NOW(); }
    for (int i = 0; i < n; i++) {
      int index = (int)events[i].data.u32;
      if (events[i].events & EPOLLOUT) flush_peer(index);
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(index);
    }
  }
  uint64_t unanswered = 0;
  for (int i = 0; i < slot_count; i++) if (slots[i].counts) unanswered++;
  printf("{\"seconds\":%.4f,\"done\":%lu,\"bad\":%lu,\"unmatched\":%lu,\"unanswered\":%lu,\"rate\":%.1f,"
         "\"server_cpu_us\":%.3f,\"answer_bytes\":%lu,\"received\":%lu,\"receive_rate\":%.1f,\"receive_p50\":%.1f,\"receive_p99\":%.1f,\"loadgen_cpu\":%.3f,\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f,\"others\":%lu,\"others_p50\":%.1f,\"others_p99\":%.1f,\"codes\":{",
         elapsed, done, bad, unmatched, unanswered, (double)done / elapsed, done ? (double)(cpu_end - cpu) / 1e3 / (double)done : 0, done ? answer_bytes / done : 0,
         received, (double)received / elapsed, quantile(&receive_latencies, .5), quantile(&receive_latencies, .99),
         (mine_end - mine) / elapsed, quantile(&latencies, .5), quantile(&latencies, .99), quantile(&latencies, .999),
         (double)latencies.slowest / 1e3, other_latencies.samples, quantile(&other_latencies, .5), quantile(&other_latencies, .99));
  for (int i = 0; i < MAX_CODES && codes[i].count; i++) printf("%s\"%d\":%lu", i ? "," : "", codes[i].code, codes[i].count);
  printf("}}\n");
  return 0;
}
