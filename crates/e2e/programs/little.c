/* Stands before `sysinfo`: of the machine's memory LITTLE_BYTES are free. For programs that take what there is. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

int sysinfo(struct sysinfo *info) {
    int result = syscall(SYS_sysinfo, info);
    const char *bytes = getenv("LITTLE_BYTES");
    if (result == 0 && bytes) info->freeram = strtoul(bytes, NULL, 10) / info->mem_unit;
    return result;
}
