/* Program that puts a node under pressure at a known rate, and measures the times of it. Static, for images without
 * a C library.
 *
 *   hog memory START_MIB MIB_PER_S UP_TO_MIB    allocates START_MIB at once, then MIB_PER_S up to UP_TO_MIB
 *   hog pids COUNT                              starts COUNT sleeping child processes
 *   hog files DIRECTORY COUNT BYTES             writes COUNT files of BYTES each, then sleeps
 *   hog cache FILE MIB TIMES                    writes a file and reads it as often through a mapping, so that its page
 *                                               cache is active, then sleeps; TIMES 0 reads it again and again
 *   hog watch AVAILABLE_MIB CGROUP...           prints the time at which the node's memory.available falls below
 *                                               AVAILABLE_MIB, and the end of the last process in each cgroup:
 *                                               one line each, milliseconds since boot
 *
 * All except watch exit on SIGTERM, and print a line at their start. With "delayed" before the other words they start
 * on SIGUSR1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIB (1024L * 1024L)

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

static void rest_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void end(int signal_number)
{
    (void)signal_number;
    _exit(0);
}

static void begin(int signal_number)
{
    (void)signal_number;
}

static void fail(const char *what)
{
    fprintf(stderr, "hog: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void allocate_mib(long count)
{
    char *p;
    if (count <= 0)
        return;
    p = mmap(NULL, count * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail("mmap");
    for (long at = 0; at < count * MIB; at += 4096)
        p[at] = 1;
}

static void memory(long start, long pace, long most)
{
    long allocated = start, begin, due;
    allocate_mib(start);
    begin = now_ms();
    while (allocated < most) {
        rest_ms(20);
        due = start + (now_ms() - begin) * pace / 1000;
        if (due > most)
            due = most;
        allocate_mib(due - allocated);
        if (due > allocated)
            allocated = due;
    }
}

static void pids(long count)
{
    for (long made = 0; made < count; made++) {
        pid_t child = fork();
        if (child == 0)
            for (;;)
                pause();
        if (child < 0)
            rest_ms(100);
    }
}

static void files(const char *directory, long count, long bytes)
{
    char path[4096], block[65536];
    memset(block, 'x', sizeof block);
    for (long made = 0; made < count; made++) {
        int file;
        snprintf(path, sizeof path, "%s/%ld", directory, made);
        file = open(path, O_CREAT | O_WRONLY, 0600);
        if (file < 0) {
            rest_ms(100);
            continue;
        }
        for (long left = bytes; left > 0; left -= sizeof block)
            if (write(file, block, left < (long)sizeof block ? (size_t)left : sizeof block) < 0) {
                rest_ms(100);
                break;
            }
        close(file);
    }
}

static void cache(const char *path, long mib, long times)
{
    static char block[MIB];
    unsigned long sum = 0;
    int file = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (file < 0)
        fail(path);
    memset(block, 'x', sizeof block);
    for (long made = 0; made < mib; made++)
        if (write(file, block, sizeof block) != (ssize_t)sizeof block)
            fail("write");
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    for (long done = 0; times == 0 || done < times; done++) {
        char *p = mmap(NULL, mib * MIB, PROT_READ, MAP_SHARED, file, 0);
        if (p == MAP_FAILED)
            fail("mmap");
        for (long at = 0; at < mib * MIB; at += 4096)
            sum += p[at];
        munmap(p, mib * MIB); /* the kernel counts an access of each page */
    }
    printf("cached %lu\n", sum % 2);
    fflush(stdout);
}

static long field(const char *path, const char *name)
{
    char line[256];
    long value = -1;
    size_t length = strlen(name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail(path);
    while (value < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && (line[length] == ' ' || line[length] == ':'))
            value = atol(line + length + 1);
    fclose(file);
    return value;
}

static long available(long total)
{
    char line[256], name[64];
    long value, formula = total;
    FILE *file = fopen("/sys/fs/cgroup/memory.stat", "r");
    if (file == NULL)
        fail("memory.stat");
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "%63s %ld", name, &value) == 2) {
        if (strcmp(name, "anon") == 0 || strcmp(name, "file") == 0)
            formula -= value;
        else if (strcmp(name, "inactive_file") == 0)
            formula += value;
    }
    fclose(file);
    long kernel = field("/proc/meminfo", "MemAvailable") * 1024L;
    return kernel < formula ? kernel : formula;
}

static int empty(const char *cgroup)
{
    char path[4096], text[64] = "";
    FILE *file;
    snprintf(path, sizeof path, "%s/cgroup.events", cgroup);
    file = fopen(path, "r");
    if (file == NULL)
        return 1;
    if (fgets(text, sizeof text, file) == NULL)
        text[0] = 0;
    fclose(file);
    return strstr(text, "populated 0") != NULL || text[0] == 0;
}

static void watch(long mib, int count, char **cgroups)
{
    int left = count;
    long total = field("/proc/meminfo", "MemTotal") * 1024L;
    while (available(total) >= mib * MIB)
        rest_ms(10);
    printf("crossed %ld\n", now_ms());
    fflush(stdout);
    while (left > 0) {
        for (int i = 0; i < count; i++)
            if (cgroups[i] != NULL && empty(cgroups[i])) {
                printf("gone %ld\n", now_ms());
                fflush(stdout);
                cgroups[i] = NULL;
                left--;
            }
        rest_ms(10);
    }
    exit(0);
}

int main(int count, char **words)
{
    if (count >= 4 && strcmp(words[1], "watch") == 0)
        watch(atol(words[2]), count - 3, words + 3);
    signal(SIGTERM, end);
    if (count > 1 && strcmp(words[1], "delayed") == 0) {
        signal(SIGUSR1, begin);
        pause();
        words++;
        count--;
    }
    printf("begun %ld\n", now_ms());
    fflush(stdout);
    if (count == 5 && strcmp(words[1], "memory") == 0)
        memory(atol(words[2]), atol(words[3]), atol(words[4]));
    else if (count == 3 && strcmp(words[1], "pids") == 0)
        pids(atol(words[2]));
    else if (count == 5 && strcmp(words[1], "files") == 0)
        files(words[2], atol(words[3]), atol(words[4]));
    else if (count == 5 && strcmp(words[1], "cache") == 0)
        cache(words[2], atol(words[3]), atol(words[4]));
    else {
        fputs("hog: invalid arguments, see hog.c\n", stderr);
        return 2;
    }
    for (;;)
        pause();
}
