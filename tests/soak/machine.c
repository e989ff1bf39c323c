/* Preloaded into processes of a soak, so that their machine can be set and cut off. See machine.py.
 *
 * MACHINE_CLOCK  a file with one int64: by so many seconds their wall clock is ahead of ours, from now on. What measures spans stays as it is.
 * MACHINE_DISK   a folder that gets what they sync: for a file <inode> with its bytes, for a folder <inode>.names with "<inode> <name>" a line.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;
static const char *disk;

__attribute__((constructor)) static void begin(void) {
    const char *clock = getenv("MACHINE_CLOCK");
    disk = getenv("MACHINE_DISK");
    int file = clock ? open(clock, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *found = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        ahead = found == MAP_FAILED ? NULL : found;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}

/* The file appears whole: two may sync at once, and the reader looks when all are dead. */
static void keep(int source, const struct stat *is) {
    char hidden[4096], name[4096], piece[65536];
    int folder = S_ISDIR(is->st_mode);
    snprintf(name, sizeof name, "%s/%llu%s", disk, (unsigned long long)is->st_ino, folder ? ".names" : "");
    snprintf(hidden, sizeof hidden, "%s.%d.tmp", name, (int)syscall(SYS_gettid));
    FILE *copy = fopen(hidden, "wbe");
    if (!copy)
        return;
    if (folder) {
        snprintf(piece, sizeof piece, "/proc/self/fd/%d", source);
        DIR *names = opendir(piece);
        for (struct dirent *each; names && (each = readdir(names));)
            if (strcmp(each->d_name, ".") && strcmp(each->d_name, ".."))
                fprintf(copy, "%llu %s\n", (unsigned long long)each->d_ino, each->d_name);
        if (names)
            closedir(names);
    } else {
        snprintf(piece, sizeof piece, "/proc/self/fd/%d", source); /* the descriptor itself may be open for writing only */
        int again = open(piece, O_RDONLY | O_CLOEXEC);
        for (ssize_t count; again >= 0 && (count = read(again, piece, sizeof piece)) > 0;)
            fwrite(piece, 1, count, copy);
        if (again >= 0)
            close(again);
    }
    fclose(copy);
    rename(hidden, name);
}

static int synced(const char *call, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, call);
    struct stat is;
    if (disk && !fstat(file, &is) && (S_ISREG(is.st_mode) || S_ISDIR(is.st_mode)))
        keep(file, &is);
    return real(file);
}

int fsync(int file) {
    return synced("fsync", file);
}

int fdatasync(int file) {
    return synced("fdatasync", file);
}
