/* A load over libnbd, for comparison: one thread and connection each, so many requests in flight on each.
 * Speaks the lines of the benchmark's workers (see worker.rs); a load of no time asks for every block once.
 * Usage: libnbd_load URI CONNECTIONS
 * Called by: libnbd.rs, which compiles it. */
#include <errno.h>
#include <libnbd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define CONNECTIONS_MAX 16
#define DEPTH_MAX 256
#define LATENCIES_MAX (1 << 22)

enum pattern { RANDOM_READ, SEQUENTIAL_READ, SEQUENTIAL_WRITE };

struct slot {
    char *buffer;
    bool free;
    int error;
};

struct connection {
    struct nbd_handle *nbd;
    pthread_t thread;
    struct slot slots[DEPTH_MAX];
    /* The run that is under way. */
    enum pattern pattern;
    uint64_t block, depth, first, step, limit, seed, answered;
    double until;
    /* Only where one request is in flight at a time. */
    float *latencies;
    uint64_t latencies_count;
};

static struct connection connections[CONNECTIONS_MAX];
static int count;
static uint64_t size;

static void die(const char *what) {
    fprintf(stderr, "libnbd_load: %s: %s\n", what, nbd_get_error() ? nbd_get_error() : strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double own_cpu(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int completed(void *user, int *error) {
    struct slot *slot = user;
    slot->error = *error;
    slot->free = true;
    return 1; /* retire the command */
}

static void *run(void *argument) {
    struct connection *c = argument;
    uint64_t asked = 0, in_flight = 0, blocks = size / c->block;
    double asked_at = 0;
    for (uint64_t i = 0; i < c->depth; i++)
        c->slots[i] = (struct slot){.buffer = c->slots[i].buffer, .free = true};
    c->answered = c->latencies_count = 0;
    bool asking = true;
    while (asking || in_flight > 0) {
        in_flight = 0;
        for (uint64_t i = 0; i < c->depth; i++) {
            struct slot *slot = &c->slots[i];
            if (slot->free && slot->error != 0) {
                errno = slot->error;
                die("a request failed");
            }
            asking = asking && asked < c->limit && (c->limit != UINT64_MAX || now() < c->until);
            if (slot->free && asking) {
                uint64_t number = c->first + asked * c->step;
                if (c->pattern == RANDOM_READ) {
                    c->seed = c->seed * 6364136223846793005u + 1442695040888963407u;
                    number = c->seed >> 16;
                }
                uint64_t offset = number % blocks * c->block;
                nbd_completion_callback callback = {.callback = completed, .user_data = slot};
                slot->free = false;
                asked_at = c->depth == 1 ? now() : 0;
                int64_t cookie = c->pattern == SEQUENTIAL_WRITE
                    ? nbd_aio_pwrite(c->nbd, slot->buffer, c->block, offset, callback, 0)
                    : nbd_aio_pread(c->nbd, slot->buffer, c->block, offset, callback, 0);
                if (cookie == -1)
                    die("cannot ask");
                asked++;
            }
            in_flight += !slot->free;
        }
        if (in_flight > 0 && nbd_poll(c->nbd, -1) == -1)
            die("cannot wait");
        uint64_t before = c->answered;
        uint64_t free_now = 0;
        for (uint64_t i = 0; i < c->depth; i++)
            free_now += c->slots[i].free;
        c->answered = asked - (c->depth - free_now);
        if (c->depth == 1 && c->answered > before && c->latencies_count < LATENCIES_MAX)
            c->latencies[c->latencies_count++] = now() - asked_at;
    }
    return NULL;
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Runs a load on every connection at once and tells what came of it. */
static void load(enum pattern pattern, uint64_t block, uint64_t depth, double seconds, uint64_t limit) {
    uint64_t each = depth / count > 0 ? depth / count : 1;
    if (each > DEPTH_MAX || block > 32 << 20)
        die("more than there is room for");
    double start = now(), cpu = own_cpu();
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        for (uint64_t s = 0; s < each; s++) {
            c->slots[s].buffer = realloc(c->slots[s].buffer, block);
            for (uint64_t at = 0; at < block; at++)
                c->slots[s].buffer[at] = (char)(at * 31 + at / 4096 + 1);
        }
        c->pattern = pattern;
        c->block = block;
        c->depth = each;
        c->first = i;
        c->step = count;
        c->limit = limit;
        c->seed = 0x2006 + i;
    }
    /* What was done until here is not part of the load. */
    start = now();
    cpu = own_cpu();
    for (int i = 0; i < count; i++) {
        connections[i].until = start + seconds;
        if (pthread_create(&connections[i].thread, NULL, run, &connections[i]) != 0)
            die("no thread");
    }
    uint64_t requests = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(connections[i].thread, NULL);
        requests += connections[i].answered;
    }
    double took = now() - start;
    cpu = own_cpu() - cpu;
    struct connection *c = &connections[0];
    qsort(c->latencies, c->latencies_count, sizeof *c->latencies, compare);
    double median = c->latencies_count ? c->latencies[c->latencies_count / 2] : 0;
    printf("{\"requests\": %lu, \"bytes\": %lu, \"seconds\": %.9f, \"median\": %.9f, \"cpu\": %.9f}\n", requests,
           requests * block, took, median, cpu);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 3 || (count = atoi(argv[2])) < 1 || count > CONNECTIONS_MAX) {
        fprintf(stderr, "usage: libnbd_load URI CONNECTIONS\n");
        return 2;
    }
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        c->nbd = nbd_create();
        if (c->nbd == NULL || nbd_connect_uri(c->nbd, argv[1]) == -1)
            die("cannot connect");
        /* Or libnbd would clear each buffer before it is filled. */
        nbd_set_pread_initialize(c->nbd, false);
        c->latencies = malloc(sizeof *c->latencies * LATENCIES_MAX);
        if (c->latencies == NULL)
            die("no memory");
    }
    size = nbd_get_size(connections[0].nbd);
    printf("{}\n");
    fflush(stdout);
    char line[256], pattern[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned long block, depth, milliseconds;
        if (strncmp(line, "fill", 4) == 0) {
            load(SEQUENTIAL_WRITE, 1 << 20, 16, 0, size / (1 << 20) / count);
            continue;
        }
        if (sscanf(line, "%63s %lu %lu %lu", pattern, &block, &depth, &milliseconds) != 4)
            die("no such order");
        enum pattern which = strcmp(pattern, "random-read") == 0 ? RANDOM_READ
            : strcmp(pattern, "sequential-read") == 0            ? SEQUENTIAL_READ
                                                                 : SEQUENTIAL_WRITE;
        uint64_t once = size / block / count;
        load(which, block, depth, milliseconds / 1e3, milliseconds == 0 ? once : UINT64_MAX);
    }
    return 0;
}
